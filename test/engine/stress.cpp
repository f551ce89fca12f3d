/*
 * stress.cpp: everything at once, against one engine that is short of memory.
 *
 * Processes with a few sessions each search, load, catch up, evict, give up half way, send garbage, and kill themselves in the middle of
 * it. Every answer is held against brute force: the rows of an index follow from its number, so everybody knows them. In the
 * end the engine must have lost nothing: not a slot, not a byte, not its life.
 *
 * VECGPU_STRESS_SECONDS and VECGPU_STRESS_SEED are for longer hunts.
 */
#include "client.h"

#include <array>
#include <memory>
#include <thread>

using namespace engine_test;

namespace {

constexpr uint32_t kIndexes = 5, kVersions = 6;
constexpr uint32_t kSizes[kVersions] = {300, 350, 410, 900, 2300, 2400}; /* the last two outgrow the mirrors of the others */
constexpr uint32_t kProcesses = 5, kThreads = 3;
constexpr uint32_t kSlots = 24;
constexpr uint64_t kMemory = 1200 * 1000; /* not enough for all */

/* Whole numbers up to 127, which every row reaches: so nothing is lost in any storage that a mirror may choose. */
float value_of(uint32_t number, uint32_t node, uint32_t dimension, uint32_t dimensions)
{
    if (dimension == node % dimensions)
        return 127;
    uint32_t hash = (number * 0x9e3779b9u) ^ (node * 0x85ebca6bu) ^ (dimension * 0xc2b2ae35u);
    hash ^= hash >> 15;
    hash *= 0x2c1b3c6du;
    hash ^= hash >> 13;
    return float(int(hash % 255) - 127);
}

TestIndex make_version(uint32_t number, uint32_t version)
{
    IndexKind kind = number % 2 == 0 ? IndexKind::Flat : IndexKind::Hnsw;
    TestIndex index = make_index(number, kind, 12 + number * 5, 0, number == 3 ? Storage::Int8 : Storage::Float32);
    Meta &meta = index.meta;
    test::Random random(number);
    /* Rows of its own, so that links fit their number. */
    add_rows(&index, kSizes[version], &random);
    size_t row = row_bytes(meta.storage, meta.dimensions);
    for (uint32_t i = 0; i < meta.nodes; i++) {
        float *values = index.rows.data() + size_t(i) * meta.dimensions;
        for (uint32_t d = 0; d < meta.dimensions; d++)
            values[d] = value_of(number, i, d, meta.dimensions);
        encode_row(meta.storage, values, meta.dimensions, index.vectors.data() + i * row, nullptr);
    }
    meta.epoch = 10 + version;
    /* A rebuild on the way. */
    meta.generation = index.key.generation = version < 3 ? 1 : 2;
    return index;
}

using Library = std::array<std::array<TestIndex, kVersions>, kIndexes>;

struct Shared {
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> steps{0}, right{0}, cold{0}, behind{0}, short_of_memory{0}, abandoned{0}, loads{0}, catch_ups{0}, busy{0}, deaths{0},
        garbage{0}, refused{0}, narrow{0};
    std::atomic<uint32_t> failures{0};
    char first[200] = "";

    __attribute__((format(printf, 2, 3))) void fail(const char *format, ...)
    {
        if (failures.fetch_add(1) != 0)
            return;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(first, sizeof first, format, arguments);
        va_end(arguments);
    }
};

class Actor {
public:
    Actor(const Library &library, Shared *shared, const std::string &socket, uint64_t seed)
        : library_(library), shared_(shared), socket_(socket), random_(seed)
    {
    }

    void run()
    {
        if (!connect())
            return;
        while (!shared_->stop) {
            shared_->steps++;
            uint32_t dice = random_.below(100);
            if (dice < 50)
                search();
            else if (dice < 58)
                search_and_leave();
            else if (dice < 66)
                burst();
            else if (dice < 82)
                load();
            else if (dice < 84)
                evict();
            else if (dice < 87)
                list();
            else if (dice < 95)
                garbage();
            else if (dice < 97)
                strange_connection();
            else if (dice < 98)
                reconnect();
            else
                die();
        }
    }

private:
    const TestIndex &any() { return library_[random_.below(kIndexes)][random_.below(kVersions)]; }

    bool connect()
    {
        int error = client_.open(socket_);
        if (error != 0)
            shared_->fail("connect: %s", strerror(error));
        return error == 0;
    }

    std::vector<float> query(const TestIndex &index)
    {
        std::vector<float> values(index.meta.dimensions);
        for (float &value : values)
            value = float(int(random_.below(255)) - 127);
        return values;
    }

    void fill(Slot &slot, const TestIndex &index, const std::vector<float> &values, uint32_t k, SearchForm form)
    {
        slot.request.op = Op::Search;
        slot.request.search = {index.key, form, k, form == SearchForm::Exact ? 0 : k + 30, index.meta.dimensions, 0, 0};
        memcpy(slot.payload, values.data(), values.size() * sizeof(float));
    }

    /* The mirror has at least response.nodes; a commit beside the search may have brought more. */
    void check(const TestIndex &index, const std::vector<float> &values, uint32_t k, SearchForm form, Status status,
               const Response &response, const std::vector<Hit> &hits)
    {
        if (status == Status::Cold || status == Status::Busy) {
            shared_->cold++;
            return;
        }
        if (status == Status::NoMemory) {
            shared_->short_of_memory++;
            return;
        }
        if (status != Status::Ok) {
            shared_->fail("search: status %d, %s", int(status), response.message);
            return;
        }
        if (form == SearchForm::Auto)
            form = response.search.form;
        for (const TestIndex &version : library_[number_of(index)]) {
            if (version.key.generation != index.key.generation || version.nodes() < response.search.nodes)
                continue;
            if (form == SearchForm::Exact ? plausible(version, values.data(), hits, k, version.nodes())
                                          : possible(version, values.data(), hits, k)) {
                shared_->right++;
                return;
            }
        }
        shared_->fail("wrong answer: index %u, form %u, k %u, %zu hits, mirror of %u nodes, epoch %llu", number_of(index),
                      unsigned(form), k, hits.size(), response.search.nodes, static_cast<unsigned long long>(response.search.epoch));
    }

    /* A graph whose links are being written may lead nowhere, but what it finds is there, once, in order, with its key. */
    static bool possible(const TestIndex &index, const float *values, const std::vector<Hit> &hits, uint32_t k)
    {
        if (hits.size() > k)
            return false;
        std::vector<bool> seen(index.nodes());
        double last = -1;
        for (const Hit &hit : hits) {
            if (hit.slot >= index.nodes() || seen[hit.slot] || double(hit.key) < last)
                return false;
            seen[hit.slot] = true;
            double right = squared(index, values, hit.slot);
            if (std::fabs(right - double(hit.key)) > 1e-4 * (1 + right))
                return false;
            last = double(hit.key);
        }
        return true;
    }

    static uint32_t number_of(const TestIndex &index) { return index.key.file - 16384; }

    SearchForm form_for(const TestIndex &index)
    {
        constexpr SearchForm forms[] = {SearchForm::Exact, SearchForm::Auto, SearchForm::Graph};
        return forms[random_.below(index.meta.kind == IndexKind::Hnsw ? 3 : 2)];
    }

    void search()
    {
        const TestIndex &index = any();
        std::vector<float> values = query(index);
        uint32_t k = 1 + random_.below(12);
        SearchForm form = form_for(index);
        Status status = client_.ask(Lane::Host, [&](Slot &slot) {
            fill(slot, index, values, k, form);
            if (random_.below(10) == 0)
                slot.request.search.least_nodes = kSizes[5];
        });
        if (status == Status::DeviceLost)
            shared_->fail("a search was not answered");
        else if (status == Status::Behind)
            shared_->behind++;
        else
            check(index, values, k, form, status, client_.response, client_.hits);
    }

    void search_and_leave()
    {
        Call call;
        if (!call_claim(&client_.caller, &call))
            return;
        const TestIndex &index = any();
        fill(*call.slot, index, query(index), 5, form_for(index));
        if (random_.below(8) != 0) /* else given up while it was being filled */
            call_submit(&client_.caller, &call, Lane::Host);
        if (random_.below(2))
            usleep(random_.below(200));
        call_abandon(&call);
        shared_->abandoned++;
    }

    /* Several slots of one session at once. */
    void burst()
    {
        struct Open {
            Call call;
            const TestIndex *index;
            std::vector<float> values;
            SearchForm form;
        };
        std::vector<Open> open(1 + random_.below(6));
        const TestIndex &common = any();
        for (Open &one : open) {
            if (!call_claim(&client_.caller, &one.call))
                continue;
            one.index = random_.below(3) ? &common : &any();
            one.values = query(*one.index);
            one.form = form_for(*one.index);
            fill(*one.call.slot, *one.index, one.values, 7, one.form);
            call_submit(&client_.caller, &one.call, Lane::Host);
        }
        for (Open &one : open) {
            if (one.call.slot == nullptr)
                continue;
            if (random_.below(10) == 0) {
                call_abandon(&one.call);
                continue;
            }
            if (!soon([&] { return call_wait(one.call, 10000000); })) {
                shared_->fail("a search of a burst was not answered");
                call_abandon(&one.call);
                continue;
            }
            Response response = one.call.slot->response;
            std::vector<Hit> hits(one.call.slot->hits, one.call.slot->hits + std::min(response.count, 100u));
            call_release(&client_.caller, &one.call);
            check(*one.index, one.values, 7, one.form, response.status, response, hits);
        }
    }

    void load()
    {
        const TestIndex &index = any();
        Status status = client_.begin(index);
        if (status == Status::Busy)
            shared_->busy++;
        if (status != Status::Ok) {
            if (status == Status::NoMemory)
                shared_->short_of_memory++;
            else if (status != Status::Current && status != Status::Busy && status != Status::Cold)
                shared_->fail("begin: status %d, %s", int(status), client_.response.message);
            return;
        }
        bool catch_up = client_.from_epoch > 0;
        uint32_t dice = random_.below(12);
        if (dice == 0)
            return; /* forgotten: the next begin of this session takes it over, or its end does */
        if (dice == 1) {
            client_.end(true);
            return;
        }
        if (dice == 2) {
            /*
             * Left in the middle of a write. The engine may still read the staging memory, so it is not used again. It holds what a session
             * would write: a mirror that is caught up with is being searched, and whatever an earlier load has left there would be answered.
             */
            Call call;
            if (client_.connection.staging != nullptr && call_claim(&client_.caller, &call)) {
                memcpy(client_.connection.staging, index.slots.data(), 100 * region_shape(index.meta, Region::Slots).record_bytes);
                Run run = {uint32_t(Region::Slots), 0, 100, 0, 0};
                call.slot->request.op = Op::LoadWrite;
                call.slot->request.write = {client_.load, 1, 0};
                memcpy(call.slot->payload, &run, sizeof run);
                call_submit(&client_.caller, &call, Lane::Control);
                call_abandon(&call);
            }
            client_.close();
            connect();
            return;
        }
        status = client_.write_all(index);
        if (status == Status::Ok)
            status = client_.end();
        else
            client_.end(true);
        if (status == Status::Ok)
            (catch_up ? shared_->catch_ups : shared_->loads)++;
        else if (status != Status::Cold) /* evicted meanwhile */
            shared_->fail("load: status %d, %s", int(status), client_.response.message);
    }

    void evict()
    {
        if (client_.evict(any().key) != Status::Ok)
            shared_->fail("evict: %s", client_.response.message);
    }

    void list()
    {
        std::vector<MirrorEntry> mirrors = client_.mirrors();
        for (const MirrorEntry &mirror : mirrors) {
            if (mirror.storage == Storage::Float16 || (mirror.storage == Storage::Int8 && mirror.index.file != 16384 + 3))
                shared_->narrow++;
            if (mirror.bytes == 0 || mirror.bytes > kMemory)
                shared_->fail("a mirror of %llu bytes", static_cast<unsigned long long>(mirror.bytes));
        }
        for (const DeviceEntry &device : client_.devices())
            if (device.memory_used > kMemory || device.memory_limit != kMemory)
                shared_->fail("%llu bytes are used", static_cast<unsigned long long>(device.memory_used));
    }

    /* Requests of random bytes, or good ones with a random word in them. Only that somebody answers is checked. */
    void garbage()
    {
        shared_->garbage++;
        const TestIndex &index = any();
        Lane lane = Lane(random_.below(kLanes));
        bool wild = random_.below(3) == 0;
        bool begun = false;
        Status status = client_.ask(lane, [&](Slot &slot) {
            uint8_t *bytes = reinterpret_cast<uint8_t *>(&slot.request);
            for (size_t i = 0; i < kQueryBytes; i += 8) {
                uint64_t word = random_.below(2) ? random_.next() : 0;
                memcpy(slot.payload + i, &word, 8);
            }
            if (wild) {
                for (size_t i = 0; i < sizeof slot.request; i++)
                    bytes[i] = uint8_t(random_.next());
                slot.request.op = Op(random_.below(9));
            } else if (lane == Lane::Control && random_.below(2)) {
                slot.request.op = Op::LoadBegin;
                slot.request.begin = {index.key, Lane(random_.below(3)), 1};
                Meta meta = index.meta;
                uint32_t word = random_.below(4) ? uint32_t(random_.next()) : random_.below(300);
                memcpy(reinterpret_cast<uint8_t *>(&meta) + random_.below(sizeof meta / 4) * 4, &word, 4);
                memcpy(slot.payload, &meta, sizeof meta);
                memset(slot.payload + sizeof meta, 0, 16);
                slot.request.begin.index.generation = meta.generation;
                slot.request.begin.index.incarnation = meta.incarnation;
                begun = true;
            } else {
                fill(slot, index, query(index), 5, SearchForm(1 + random_.below(2)));
                uint32_t word = uint32_t(random_.next());
                memcpy(bytes + random_.below(sizeof(Request) / 4) * 4, &word, 4);
            }
            /* Indexes and loads of the others are not to be hit by chance. */
            slot.request.search.index.database = 99;
            if (slot.request.op == Op::LoadWrite || slot.request.op == Op::LoadEnd)
                slot.request.write.load |= 1ull << 63;
        });
        if (status == Status::DeviceLost)
            shared_->fail("garbage was not answered");
        else if (status != Status::Ok)
            shared_->refused++;
        if (begun && status == Status::Ok) {
            client_.load = client_.response.begin.load;
            client_.end(true);
        }
    }

    void strange_connection()
    {
        int fd = -1;
        if (socket_connect(socket_.c_str(), kConnectMs, &fd) != 0)
            return;
        uint8_t bytes[100];
        for (uint8_t &byte : bytes)
            byte = uint8_t(random_.next());
        SocketPacket packet = {};
        packet.magic = kProtocolMagic;
        packet.version = kProtocolVersion;
        packet.type = SocketMessage(1 + random_.below(5));
        packet.bytes = random_.next();
        ssize_t sent;
        switch (random_.below(4)) {
            case 0: /* says nothing */
                break;
            case 1:
                sent = send(fd, bytes, random_.below(sizeof bytes), MSG_NOSIGNAL);
                (void)sent;
                break;
            case 2: /* with a descriptor that is no memory */
                socket_send(fd, packet, fd);
                break;
            default:
                socket_send(fd, packet, -1);
                socket_send(fd, packet, -1);
        }
        close(fd);
        SharedBell &bell = client_.connection.area->bells[random_.below(kLanes)];
        bell_ring<SharedFutex>(bell, random_.below(kMaxSlots)); /* for nothing */
    }

    void reconnect()
    {
        client_.close();
        connect();
    }

    /* At any point of a request, or of a load. */
    void die()
    {
        if (random_.below(4) != 0)
            return; /* not too often: a process takes a while to come back */
        Call call;
        uint32_t point = random_.below(6);
        const TestIndex &index = any();
        if (point == 5 && client_.begin(index) == Status::Ok && random_.below(2))
            client_.write_all(index);
        if (call_claim(&client_.caller, &call)) {
            fill(*call.slot, index, query(index), 5, form_for(index));
            if (point == 1)
                slot_submit(call.slot->control, call.claim); /* not rung */
            if (point == 2)
                call.slot->request.lane = Lane::Host;
            if (point >= 3)
                call_submit(&client_.caller, &call, Lane::Host);
            if (point == 4)
                usleep(random_.below(100));
        }
        shared_->deaths++;
        kill(getpid(), SIGKILL);
    }

    const Library &library_;
    Shared *shared_;
    const std::string socket_;
    test::Random random_;
    Client client_;
};

uint64_t number_from(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text != nullptr ? strtoull(text, nullptr, 10) : otherwise;
}

pid_t start_process(const Library &library, Shared *shared, const std::string &socket, uint64_t seed)
{
    fflush(stdout);
    pid_t pid = fork();
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < kThreads; t++)
        threads.emplace_back([&, t] { Actor(library, shared, socket, seed * 100 + t).run(); });
    for (std::thread &thread : threads)
        thread.join();
    exit(0);
}

} // namespace

int main()
{
    auto library = std::make_unique<Library>();
    for (uint32_t i = 0; i < kIndexes; i++)
        for (uint32_t v = 0; v < kVersions; v++)
            (*library)[i][v] = make_version(i, v);
    void *memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    Shared *shared = new (memory) Shared();
    EngineProcess engine("stress", [](Options *o) {
        o->slots = kSlots;
        o->memory_limit = kMemory;
    });

    TEST("nothing wrong is answered, and everything is answered");
    std::array<pid_t, kProcesses> processes;
    uint64_t seed = number_from("VECGPU_STRESS_SEED", 1) * 1000000;
    uint64_t seconds = number_from("VECGPU_STRESS_SECONDS", kSlow ? 10 : 8);
    for (pid_t &pid : processes)
        pid = start_process(*library, shared, engine.options.socket, seed++);
    auto a_test = [&] { return shared->right > 100 && shared->loads > 5 && shared->catch_ups > 0 && shared->deaths > 0; };
    /* A busy machine gets more time for it. */
    uint64_t until = now_ns() + seconds * 1000000000ull, at_last = until + uint64_t(kPatienceMs) * 1000000;
    while ((now_ns() < until || (now_ns() < at_last && !a_test())) && shared->failures == 0 && engine.runs()) {
        usleep(10000);
        for (pid_t &pid : processes) {
            int status;
            if (waitpid(pid, &status, WNOHANG) != pid)
                continue;
            CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "a client ended with %x", unsigned(status));
            pid = start_process(*library, shared, engine.options.socket, seed++);
        }
    }
    CHECK(engine.runs(), "the engine died");
    shared->stop = true;
    for (pid_t pid : processes) {
        int status = 0;
        waitpid(pid, &status, 0);
        CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 0) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL),
              "a client ended with %x", unsigned(status));
    }
    CHECK(shared->failures == 0, "%u failures, the first: %s", shared->failures.load(), shared->first);
    auto count = [](const std::atomic<uint64_t> &of) { return static_cast<unsigned long long>(of.load()); };
    test::note("%llu steps: %llu right answers, %llu cold, %llu behind, %llu without memory, %llu given up", count(shared->steps),
               count(shared->right), count(shared->cold), count(shared->behind), count(shared->short_of_memory), count(shared->abandoned));
    test::note("%llu loads, %llu catch-ups, %llu busy; %llu pieces of garbage, %llu refused; %llu deaths; narrow mirrors seen %llu times",
               count(shared->loads), count(shared->catch_ups), count(shared->busy), count(shared->garbage), count(shared->refused), count(shared->deaths),
               count(shared->narrow));
    CHECK(a_test(), "it was hardly a test");

    TEST("nothing is lost: slots, memory, the engine");
    {
        Client client(engine);
        bool all_free = soon([&] { return client.slots_in_use() == 0; });
        CHECK(all_free, "%u slots leaked", client.slots_in_use());
        for (uint32_t i = 0; i < kIndexes; i++)
            CHECK(client.evict((*library)[i][0].key) == Status::Ok, "evict");
        bool empty = soon([&] { return client.memory_used() == 0; }) && client.mirrors().empty();
        CHECK(empty, "%llu bytes leaked", static_cast<unsigned long long>(client.memory_used()));
        const TestIndex &index = (*library)[0][3];
        CHECK(client.load_index(index) == Status::Ok && client.search(index, index.row(7), 3) == Status::Ok, "serves");
    }
    int status = engine.stop(SIGTERM);
    CHECK(status == 0, "the engine ended with %d", status);
    return test::finish();
}
