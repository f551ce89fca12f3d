/*
 * bench.cpp: see bench.h.
 *
 * Measures the path of a request and nothing else: an engine in a child process, clients in others, over the real socket, slots and
 * futexes, on an index so small that its search costs next to nothing. What a call of the device costs without all that is
 * measured beside it, in a process of its own too, so that no process forks after it has opened a device.
 */
#include "engine/bench.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <vector>

#include <sys/wait.h>

#include "engine/devices.h"
#include "engine/handle.h"
#include "engine/meta.h"
#include "engine/server.h"
#include "protocol/call.h"
#include "protocol/session.h"

namespace vecgpu {

namespace {

constexpr uint32_t kHits = 10;
constexpr int kConnectMs = 5000;
constexpr uint32_t kBucketNs = 50;
constexpr uint32_t kBuckets = 100000; /* 5 ms; the last holds the rest */

/* Of one client, in memory that all processes share. */
struct Tally {
    uint64_t requests;
    uint64_t wrong;
    uint64_t slept; /* requests for which the client went to sleep */
    uint64_t width; /* sum */
    uint32_t bucket[kBuckets];

    void add(uint64_t ns)
    {
        requests++;
        bucket[std::min<uint64_t>(ns / kBucketNs, kBuckets - 1)]++;
    }
};

struct Shared {
    std::atomic<uint32_t> ready;
    std::atomic<uint32_t> phase; /* 1: warm up, 2: count, 3: stop */
    Tally tally[1];
};

struct Summary {
    uint64_t requests = 0, wrong = 0, slept = 0, width = 0;
    double p50_us = 0, p99_us = 0;
};

Summary summarize(const Tally *tally, uint32_t count)
{
    Summary sum;
    std::vector<uint64_t> bucket(kBuckets);
    for (uint32_t i = 0; i < count; i++) {
        sum.requests += tally[i].requests;
        sum.wrong += tally[i].wrong;
        sum.slept += tally[i].slept;
        sum.width += tally[i].width;
        for (uint32_t b = 0; b < kBuckets; b++)
            bucket[b] += tally[i].bucket[b];
    }
    auto at = [&](double share) {
        uint64_t wanted = static_cast<uint64_t>(static_cast<double>(sum.requests) * share), seen = 0;
        for (uint32_t b = 0; b < kBuckets; b++) {
            seen += bucket[b];
            if (seen > wanted)
                return (b + 0.5) * kBucketNs / 1000;
        }
        return 0.0;
    };
    sum.p50_us = at(0.5);
    sum.p99_us = at(0.99);
    return sum;
}

/* What all processes agree on without talking: rows are the same everywhere. */
std::vector<float> make_rows(const Options &options)
{
    std::vector<float> rows(static_cast<size_t>(options.rows) * options.dimensions);
    uint32_t state = 1;
    for (float &value : rows) {
        state = state * 1664525 + 1013904223;
        value = static_cast<float>(state >> 8) / (1 << 24);
    }
    return rows;
}

Meta make_meta(const Options &options)
{
    Meta meta = {};
    meta.magic = kMagic;
    meta.version = kFormatVersion;
    meta.kind = IndexKind::Flat;
    meta.metric = Metric::L2;
    meta.storage = Storage::Float32;
    meta.cell_width = 4;
    meta.dimensions = options.dimensions;
    meta.m = 16;
    meta.generation = 1;
    meta.incarnation = 0x62656e6368;
    meta.epoch = 1;
    meta.nodes = options.rows;
    meta.entry_handle = kNone;
    return meta;
}

IndexKey key_of(const Meta &meta)
{
    return {1, 2, 3, meta.generation, meta.incarnation};
}

SlotRecord live_record()
{
    return {{0, 1, 1}, kRowLive};
}

void think(uint32_t us)
{
    for (uint64_t until = now_ns() + us * 1000ull; us > 0 && now_ns() < until;)
        cpu_pause();
}

/* ---- a call of the device in its own process ---- */

bool direct(const Options &options, Tally *tally)
{
    char error[kErrorBytes] = "";
    Devices devices;
    OpenDevice *device = nullptr;
    if (!options.host_only && devices.open_gpus(options.memory_limit, error) > 0)
        device = devices.find(Lane::Gpu, 0);
    else if (devices.open_host(options.memory_limit, error))
        device = devices.find(Lane::Host, 0);
    if (device == nullptr)
        return false;
    const DeviceApi &api = *device->api;
    Meta meta = make_meta(options);
    MirrorShape shape = shape_with_slack(meta, meta.storage);
    MirrorState state = state_of_meta(meta);
    std::vector<float> rows = make_rows(options);
    std::vector<SlotRecord> slots(options.rows, live_record());
    Stream stream;
    DeviceMirror *mirror = nullptr;
    if (device->open_stream(&stream, error) != Status::Ok ||
        api.mirror_create(device->handle(), &shape, &mirror, error) != Status::Ok)
        return false;
    Status status = api.mirror_write(stream.get(), mirror, Region::Vectors, 0, options.rows, rows.data(), error);
    if (status == Status::Ok)
        status = api.mirror_write(stream.get(), mirror, Region::Slots, 0, options.rows, slots.data(), error);
    if (status == Status::Ok)
        status = api.mirror_commit(stream.get(), mirror, &state, error);
    std::vector<Hit> hits(kHits);
    uint32_t count = 0;
    uint64_t until = now_ns() + 1000000000;
    for (uint64_t i = 0; status == Status::Ok && now_ns() < until; i++) {
        BatchParams params = {SearchForm::Exact, kHits, 0, options.dimensions, nullptr};
        BatchQuery query = {rows.data() + i % options.rows * options.dimensions, hits.data(), &count};
        BatchTimes times = {};
        uint64_t began = now_ns();
        status = api.search(stream.get(), mirror, &params, &query, 1, [](void *, uint32_t) {}, nullptr, &times, error);
        if (i > 1000)
            tally->add(now_ns() - began);
    }
    api.mirror_drop(mirror);
    return status == Status::Ok;
}

/* ---- clients ---- */

bool await(const Caller &caller, const Call &call, uint64_t *slept)
{
    if (call_spin(caller, call))
        return true;
    ++*slept;
    for (int slices = 0; slices < 1000; slices++)
        if (call_wait(call, 10000000))
            return true;
    return false;
}

Status ask(Caller *caller, Lane lane, const std::function<void(Slot &)> &fill, Response *response)
{
    Call call;
    uint64_t unused = 0;
    if (!call_claim(caller, &call))
        return Status::Full;
    fill(*call.slot);
    call_submit(caller, &call, lane);
    if (!await(*caller, call, &unused)) {
        call_abandon(&call);
        return Status::DeviceLost;
    }
    *response = call.slot->response;
    call_release(caller, &call);
    return response->status;
}

bool load(const Options &options, Connection *connection, Lane lane)
{
    Caller caller;
    caller_init(&caller, connection->area, connection->session, connection->slots);
    Meta meta = make_meta(options);
    std::vector<float> rows = make_rows(options);
    uint64_t row = row_bytes(meta.storage, meta.dimensions);
    uint32_t chunk = static_cast<uint32_t>(std::min<uint64_t>(options.rows, 16 * 1024 * 1024 / (row + sizeof(SlotRecord)) + 1));
    uint64_t slots_at = chunk * row;
    if (connection_stage(connection, slots_at + chunk * sizeof(SlotRecord), kConnectMs) != 0)
        return false;
    Response response;
    Status status = ask(&caller, Lane::Control, [&](Slot &slot) {
        slot.request.op = Op::LoadBegin;
        slot.request.begin = {key_of(meta), lane, 4};
        memcpy(slot.payload, &meta, sizeof meta);
        slot.payload[sizeof meta] = 0;
    }, &response);
    uint64_t id = response.begin.load;
    uint8_t *staging = static_cast<uint8_t *>(connection->staging);
    for (uint32_t first = 0; status == Status::Ok && first < options.rows; first += chunk) {
        uint32_t count = std::min(chunk, options.rows - first);
        memcpy(staging, rows.data() + static_cast<size_t>(first) * options.dimensions, count * row);
        SlotRecord record = live_record();
        for (uint32_t i = 0; i < count; i++)
            memcpy(staging + slots_at + i * sizeof record, &record, sizeof record);
        Run runs[2] = {{static_cast<uint32_t>(Region::Vectors), first, count, 0, 0},
                       {static_cast<uint32_t>(Region::Slots), first, count, 0, slots_at}};
        status = ask(&caller, Lane::Control, [&](Slot &slot) {
            slot.request.op = Op::LoadWrite;
            slot.request.write = {id, 2, 0};
            memcpy(slot.payload, runs, sizeof runs);
        }, &response);
    }
    if (status == Status::Ok)
        status = ask(&caller, Lane::Control, [&](Slot &slot) {
            slot.request.op = Op::LoadEnd;
            slot.request.end = {id, 0, 0};
        }, &response);
    if (status != Status::Ok)
        fprintf(stderr, "load failed: status %d, %s\n", static_cast<int>(status), response.message);
    return status == Status::Ok;
}

void client(const Options &options, const std::string &socket, Shared *shared, Tally *tally)
{
    Connection connection;
    if (int error = connection_open(&connection, socket.c_str(), kConnectMs)) {
        fprintf(stderr, "client: %s\n", strerror(error));
        tally->wrong++;
        shared->ready.fetch_add(1);
        return;
    }
    Caller caller;
    caller_init(&caller, connection.area, connection.session, connection.slots);
    Lane lane = connection.area->gpus > 0 ? Lane::Gpu : Lane::Host;
    std::vector<float> rows = make_rows(options);
    IndexKey key = key_of(make_meta(options));
    uint32_t expected = std::min(kHits, options.rows);
    shared->ready.fetch_add(1);
    for (uint32_t i = 0;; i++) {
        uint32_t phase = shared->phase.load(std::memory_order_relaxed);
        if (phase == 3)
            break;
        if (phase == 0) {
            usleep(1000);
            continue;
        }
        Call call;
        uint32_t row = (i * 7 + connection.session) % options.rows;
        uint64_t began = now_ns();
        bool answered = false;
        uint64_t slept = 0, width = 0;
        if (call_claim(&caller, &call)) {
            call.slot->request.op = Op::Search;
            call.slot->request.search = {key, SearchForm::Exact, kHits, 0, options.dimensions, 0, 0};
            memcpy(call.slot->payload, rows.data() + static_cast<size_t>(row) * options.dimensions,
                   options.dimensions * sizeof(float));
            call_submit(&caller, &call, lane);
            answered = await(caller, call, &slept);
        }
        bool right = false;
        if (answered) {
            const Response &response = call.slot->response;
            right = response.status == Status::Ok && response.count == expected && call.slot->hits[0].slot == row;
            width = response.search.width;
            call_release(&caller, &call);
        }
        if (phase == 2) {
            tally->add(now_ns() - began);
            tally->slept += slept;
            tally->width += width;
        }
        if (!right)
            tally->wrong++;
        think(options.think_us);
    }
    connection_close(&connection);
}

/* ---- the run ---- */

class Children {
public:
    ~Children()
    {
        for (pid_t pid : pids_)
            kill(pid, SIGTERM);
        join();
    }
    pid_t add(const std::function<int()> &work)
    {
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0)
            _exit(work());
        if (pid > 0)
            pids_.push_back(pid);
        return pid;
    }
    bool join()
    {
        bool well = true;
        for (pid_t pid : pids_) {
            int status = 0;
            well &= waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
        }
        pids_.clear();
        return well;
    }

private:
    std::vector<pid_t> pids_;
};

bool measure(const Options &options, const std::string &socket, uint32_t clients, Summary *summary)
{
    size_t bytes = sizeof(Shared) + clients * sizeof(Tally);
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    Mapping mapping(memory, bytes);
    Shared *shared = new (memory) Shared();
    Children children;
    for (uint32_t i = 0; i < clients; i++)
        children.add([&] {
            client(options, socket, shared, &shared->tally[i]);
            return 0;
        });
    while (shared->ready.load() < clients)
        usleep(1000);
    shared->phase.store(1);
    usleep(300000);
    shared->phase.store(2);
    usleep(options.seconds * 1000000);
    shared->phase.store(3);
    bool well = children.join();
    *summary = summarize(shared->tally, clients);
    return well;
}

} // namespace

int bench(const Options &given)
{
    Options options = given;
    options.socket = "/tmp/vecgpu-bench-" + std::to_string(getpid()) + ".sock";
    options.log_fd = -1;
    Children engine;
    engine.add([&] { return static_cast<int>(serve(options)); });

    size_t bytes = sizeof(Tally);
    Mapping mapping(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), bytes);
    Tally *tally = static_cast<Tally *>(mapping.memory());
    Children alone;
    alone.add([&] { return direct(options, tally) ? 0 : 1; });
    if (!alone.join()) {
        fprintf(stderr, "the direct call failed\n");
        return 1;
    }
    Summary in_process = summarize(tally, 1);
    printf("rows %u, dimensions %u, k %u, exact\n", options.rows, options.dimensions, kHits);
    printf("in process: p50 %.2f us, p99 %.2f us\n", in_process.p50_us, in_process.p99_us);

    Connection connection;
    int error = ENOENT;
    for (int tries = 0; tries < 200 && error != 0; tries++) {
        error = connection_open(&connection, options.socket.c_str(), kConnectMs);
        if (error != 0)
            usleep(50000);
    }
    if (error != 0) {
        fprintf(stderr, "could not connect to the engine: %s\n", strerror(error));
        return 1;
    }
    Lane lane = connection.area->gpus > 0 ? Lane::Gpu : Lane::Host;
    bool well = load(options, &connection, lane);
    std::vector<uint32_t> widths = {1, 16, 64};
    if (options.clients != 0)
        widths = {options.clients};
    for (uint32_t clients : widths) {
        Summary sum;
        if (!well || !measure(options, options.socket, clients, &sum)) {
            fprintf(stderr, "the run with %u clients failed\n", clients);
            return 1;
        }
        printf("%u clients: %.0f requests/s, p50 %.2f us, p99 %.2f us, slept for %.0f %%, mean width %.1f, wrong %llu\n", clients,
               static_cast<double>(sum.requests) / options.seconds, sum.p50_us, sum.p99_us,
               100.0 * static_cast<double>(sum.slept) / static_cast<double>(std::max<uint64_t>(sum.requests, 1)),
               static_cast<double>(sum.width) / static_cast<double>(std::max<uint64_t>(sum.requests, 1)),
               static_cast<unsigned long long>(sum.wrong));
        if (clients == 1)
            printf("added by the path: p50 %.2f us, p99 %.2f us\n", sum.p50_us - in_process.p50_us,
                   sum.p99_us - in_process.p99_us);
        well = sum.wrong == 0;
    }
    connection_close(&connection);
    return well ? 0 : 1;
}

} // namespace vecgpu
