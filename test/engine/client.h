/*
 * client.h: for the programs of this folder: an engine in a child process, sessions with it, indexes to load into it.
 */
#pragma once

#include "core/distance.h"
#include "engine/device.h"
#include "engine/log.h"
#include "engine/options.h"
#include "engine/server.h"
#include "protocol/call.h"
#include "protocol/session.h"
#include "soon.h"
#include "test.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <functional>
#include <string>
#include <vector>

#include <sys/prctl.h>
#include <sys/wait.h>

namespace engine_test {

using namespace vecgpu;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

constexpr int kConnectMs = 30000;

/* An index as a session sees it. Flat, or a graph in which everybody is linked to the next ones: good enough to be walked. */
struct TestIndex {
    Meta meta = {};
    IndexKey key = {};
    std::vector<float> rows; /* decoded */
    std::vector<uint8_t> vectors, links, slots, upper;

    uint32_t nodes() const { return meta.nodes; }
    const float *row(uint32_t node) const { return rows.data() + size_t(node) * meta.dimensions; }
};

inline void add_rows(TestIndex *index, uint32_t count, test::Random *random)
{
    Meta &meta = index->meta;
    uint32_t first = meta.nodes;
    meta.nodes += count;
    meta.epoch++;
    size_t row = row_bytes(meta.storage, meta.dimensions);
    index->rows.resize(size_t(meta.nodes) * meta.dimensions);
    index->vectors.resize(size_t(meta.nodes) * row);
    index->slots.resize(size_t(meta.nodes) * sizeof(SlotRecord));
    for (uint32_t i = first; i < meta.nodes; i++) {
        float *values = index->rows.data() + size_t(i) * meta.dimensions;
        for (uint32_t d = 0; d < meta.dimensions; d++)
            values[d] = float(int(random->below(2001)) - 1000) / 64; /* exact in all 16-bit storages but bfloat16 */
        encode_row(meta.storage, values, meta.dimensions, index->vectors.data() + i * row, nullptr);
        decode_row(meta.storage, index->vectors.data() + i * row, meta.dimensions, values);
        SlotRecord record = {{0, uint16_t(i >> 8), uint16_t(i % 256 + 1)}, kRowLive};
        memcpy(index->slots.data() + i * sizeof record, &record, sizeof record);
    }
    if (meta.kind == IndexKind::Flat)
        return;
    uint32_t cells = 2u * meta.m;
    uint32_t record = region_shape(meta, Region::Links).record_bytes;
    index->links.assign(size_t(meta.nodes) * record, 0xff);
    for (uint32_t i = 0; i < meta.nodes; i++)
        for (uint32_t c = 0; c < cells && c + 1 < meta.nodes; c++)
            store_cell(index->links.data() + size_t(i) * record, c, meta.cell_width,
                       c < cells / 2 ? (i + c + 1) % meta.nodes : random->below(meta.nodes));
    meta.entry_handle = 0;
    meta.entry_level = 0;
}

inline TestIndex make_index(uint32_t number, IndexKind kind, uint32_t dimensions, uint32_t nodes, Storage storage = Storage::Float32)
{
    TestIndex index;
    Meta &meta = index.meta;
    meta.magic = kMagic;
    meta.version = kFormatVersion;
    meta.kind = kind;
    meta.metric = Metric::L2;
    meta.storage = storage;
    meta.cell_width = 4;
    meta.dimensions = dimensions;
    meta.m = 8;
    meta.generation = 1;
    meta.incarnation = 0x1000000000ull + number;
    meta.entry_handle = kNone;
    index.key = {5, 1663, 16384 + number, 1, meta.incarnation};
    test::Random random(number * 7919 + 1);
    add_rows(&index, nodes, &random);
    return index;
}

/* ---- engine ---- */

class EngineProcess {
public:
    /*
     * `in_child` runs in the engine's process before the engine. An end that takes long is not cut short (engine/server.cpp) unless
     * `cut_short`: a busy machine needs its time, and only a regular end shows that all threads come to theirs.
     */
    explicit EngineProcess(const char *name, const std::function<void(Options *)> &change = {},
                           const std::function<void()> &in_child = {}, bool cut_short = false)
        : in_child(in_child), cut_short(cut_short)
    {
        options.socket = "/tmp/vecgpu-test-" + std::string(name) + "-" + std::to_string(getpid()) + ".sock";
        options.host_only = true;
        options.slots = 64;
        options.threads = 4;
        if (change)
            change(&options);
        start();
    }
    EngineProcess(const EngineProcess &) = delete;
    ~EngineProcess() { stop(SIGTERM); }

    void start()
    {
        fflush(stdout);
        fflush(stderr);
        pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (!cut_short) {
                sigset_t set;
                sigemptyset(&set);
                sigaddset(&set, SIGALRM);
                pthread_sigmask(SIG_BLOCK, &set, nullptr);
            }
            if (in_child)
                in_child();
            prepare_process();
            log_open(options.log_fd >= 0 ? options.log_fd : ::open("/dev/null", O_WRONLY | O_CLOEXEC));
            /* exit() and not _exit(): the leak check of a sanitizer runs there. */
            exit(static_cast<int>(serve(options)));
        }
    }

    /* Exit status, or 1000 + signal; -1 if it does not end. 0: no signal. */
    int stop(int signal_number)
    {
        if (pid <= 0)
            return last;
        if (signal_number != 0)
            kill(pid, signal_number);
        int status = 0;
        if (soon([&] { return waitpid(pid, &status, WNOHANG) == pid; })) {
            pid = 0;
            return last = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
        }
        kill(pid, SIGKILL);
        waitpid(pid, nullptr, 0);
        pid = 0;
        return last = -1;
    }

    bool runs() const { return pid > 0 && waitpid(pid, nullptr, WNOHANG) == 0; }

    std::function<void()> in_child;
    Options options;
    bool cut_short;
    pid_t pid = 0;
    int last = 0;
};

/* ---- a session ---- */

class Client {
public:
    Client() = default;
    explicit Client(const EngineProcess &engine) { open(engine.options.socket); }
    Client(const Client &) = delete;
    ~Client() { close(); }

    /* Waits for an engine, unless one must be there. */
    int open(const std::string &socket, bool wait = true)
    {
        int error = ENOENT;
        soon([&] {
            uint64_t began = now_ns();
            error = connection_open(&connection, socket.c_str(), kConnectMs);
            /* The engine closes on a session that says nothing for 5 s, be it that the machine held it up. */
            bool late = error == kSocketClosed && now_ns() - began > 4000000000;
            return !late && (!wait || (error != ENOENT && error != ECONNREFUSED));
        });
        if (error == 0)
            caller_init(&caller, connection.area, connection.session, connection.slots);
        return error;
    }
    void close() { connection_close(&connection); }

    /* DeviceLost: no answer within the patience, or ever: the engine is gone. */
    Status ask(Lane lane, const std::function<void(Slot &)> &fill)
    {
        Call call;
        while (!call_claim(&caller, &call))
            usleep(100);
        memset(&call.slot->request, 0, sizeof call.slot->request);
        fill(*call.slot);
        call_submit(&caller, &call, lane);
        bool answered = call_spin(caller, call), gone = false;
        uint64_t until = now_ns() + uint64_t(kPatienceMs) * 1000000;
        while (!answered && !gone && now_ns() < until) {
            gone = socket_is_closed(connection.fd); /* before the look for an answer, which may be its last */
            answered = call_wait(call, 10000000);
        }
        if (!answered) {
            call_abandon(&call);
            return Status::DeviceLost;
        }
        response = call.slot->response;
        hits.assign(call.slot->hits, call.slot->hits + std::min(response.count, kMaxHits));
        if (lane == Lane::Control)
            payload.assign(call.slot->payload, call.slot->payload + sizeof call.slot->payload);
        call_release(&caller, &call);
        return response.status;
    }

    /* A request that nobody waits for; true once the engine is about it. */
    bool start(Lane lane, Call *call, const std::function<void(Slot &)> &fill)
    {
        while (!call_claim(&caller, call))
            usleep(100);
        memset(&call->slot->request, 0, sizeof call->slot->request);
        fill(*call->slot);
        call_submit(&caller, call, lane);
        return soon([&] { return state_of(call->slot->control.word.load()) == SlotState::Taken; });
    }

    Status search(const TestIndex &index, const float *query, uint32_t k, SearchForm form = SearchForm::Exact, uint32_t ef = 0,
                  uint32_t least_nodes = 0)
    {
        return ask(Lane::Host, [&](Slot &slot) {
            slot.request.op = Op::Search;
            slot.request.search = {index.key, form, k, ef, index.meta.dimensions, least_nodes, 0};
            memcpy(slot.payload, query, index.meta.dimensions * sizeof(float));
        });
    }

    Status begin(const TestIndex &index, const char *path = "")
    {
        Status status = ask(Lane::Control, [&](Slot &slot) {
            slot.request.op = Op::LoadBegin;
            slot.request.begin = {index.key, Lane::Host, index.key.file};
            memcpy(slot.payload, &index.meta, sizeof index.meta);
            memcpy(slot.payload + sizeof index.meta, path, strlen(path) + 1);
        });
        load = response.begin.load;
        from_epoch = response.begin.epoch;
        from_nodes = response.begin.nodes;
        return status;
    }

    Status write(const std::vector<Run> &runs)
    {
        return ask(Lane::Control, [&](Slot &slot) {
            slot.request.op = Op::LoadWrite;
            slot.request.write = {load, uint32_t(runs.size()), 0};
            if (!runs.empty())
                memcpy(slot.payload, runs.data(), std::min<size_t>(runs.size() * sizeof(Run), kQueryBytes));
        });
    }

    Status end(bool abort = false)
    {
        return ask(Lane::Control, [&](Slot &slot) {
            slot.request.op = Op::LoadEnd;
            slot.request.end = {load, abort, 0};
        });
    }

    /* Everything that begin() asked for: vectors from from_nodes on, the rest whole. */
    Status write_all(const TestIndex &index)
    {
        constexpr uint64_t kStaging = 256 * 1024;
        if (connection.staging == nullptr && connection_stage(&connection, kStaging, kConnectMs) != 0)
            return Status::NoMemory;
        struct Part {
            Region region;
            const std::vector<uint8_t> &bytes;
            uint32_t first, count;
        };
        const Part parts[] = {{Region::Vectors, index.vectors, from_nodes, index.nodes()},
                              {Region::Links, index.links, 0, index.links.empty() ? 0 : index.nodes()},
                              {Region::Slots, index.slots, 0, index.nodes()},
                              {Region::Upper, index.upper, 0, index.upper.empty() ? 0 : index.meta.upper}};
        for (const Part &part : parts) {
            uint64_t record = region_shape(index.meta, part.region).record_bytes;
            uint32_t most = uint32_t(std::max<uint64_t>(kStaging / record, 1));
            for (uint32_t first = part.first; first < part.count; first += most) {
                uint32_t count = std::min(most, part.count - first);
                memcpy(connection.staging, part.bytes.data() + first * record, count * record);
                Status status = write({{uint32_t(part.region), first, count, 0, 0}});
                if (status != Status::Ok)
                    return status;
            }
        }
        return Status::Ok;
    }

    Status load_index(const TestIndex &index, const char *path = "")
    {
        Status status = begin(index, path);
        if (status != Status::Ok)
            return status;
        status = write_all(index);
        if (status != Status::Ok) {
            end(true);
            return status;
        }
        return end();
    }

    Status evict(const IndexKey &key)
    {
        return ask(Lane::Control, [&](Slot &slot) {
            slot.request.op = Op::Evict;
            slot.request.evict = {key};
        });
    }

    std::vector<MirrorEntry> mirrors(uint32_t ef = 0, uint32_t k = 0)
    {
        std::vector<MirrorEntry> list;
        if (ask(Lane::Control, [&](Slot &slot) {
                slot.request.op = Op::ListMirrors;
                slot.request.list = {0, ef, k, 0};
            }) != Status::Ok)
            return list;
        list.resize(response.count);
        if (response.count > 0)
            memcpy(list.data(), payload.data(), response.count * sizeof(MirrorEntry));
        return list;
    }

    std::vector<DeviceEntry> devices()
    {
        std::vector<DeviceEntry> list;
        if (ask(Lane::Control, [&](Slot &slot) { slot.request.op = Op::ListDevices; }) != Status::Ok)
            return list;
        list.resize(response.count);
        if (response.count > 0)
            memcpy(list.data(), payload.data(), response.count * sizeof(DeviceEntry));
        return list;
    }

    /* Of the engine's one device. */
    uint64_t memory_used()
    {
        std::vector<DeviceEntry> list = devices();
        return list.empty() ? UINT64_MAX : list[0].memory_used;
    }

    /* Slots that are not free. */
    uint32_t slots_in_use() const
    {
        uint32_t used = 0;
        for (uint32_t i = 0; i < connection.slots; i++)
            used += state_of(connection.area->slot[i].control.word.load()) != SlotState::Free;
        return used;
    }

    Connection connection;
    Caller caller;
    Response response = {};
    std::vector<Hit> hits;
    std::vector<uint8_t> payload;
    uint64_t load = 0, from_epoch = 0;
    uint32_t from_nodes = 0;
};

/* ---- brute force ---- */

inline double squared(const TestIndex &index, const float *query, uint32_t node)
{
    double sum = 0;
    for (uint32_t d = 0; d < index.meta.dimensions; d++) {
        double delta = double(query[d]) - double(index.row(node)[d]);
        sum += delta * delta;
    }
    return sum;
}

/*
 * Whether `hits` can be the k nearest of the first `nodes` rows: as many as there must be, in order, no slot twice, keys right within
 * what float32 and the storage lose (`slack`, relative), and none missing that is clearly nearer than the last.
 */
inline bool plausible(const TestIndex &index, const float *query, const std::vector<Hit> &hits, uint32_t k, uint32_t nodes,
                      double slack = 1e-4)
{
    if (hits.size() != std::min(k, nodes))
        return false;
    std::vector<double> all(nodes);
    for (uint32_t i = 0; i < nodes; i++)
        all[i] = squared(index, query, i);
    std::vector<bool> seen(nodes);
    double last = -1;
    for (const Hit &hit : hits) {
        if (hit.slot >= nodes || seen[hit.slot])
            return false;
        seen[hit.slot] = true;
        if (std::fabs(all[hit.slot] - double(hit.key)) > slack * (1 + all[hit.slot]) || double(hit.key) < last)
            return false;
        last = double(hit.key);
    }
    std::nth_element(all.begin(), all.begin() + std::ptrdiff_t(hits.size()) - 1, all.end());
    double worst = all[hits.size() - 1];
    return last <= worst + slack * (1 + worst);
}

} // namespace engine_test
