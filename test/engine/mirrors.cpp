/*
 * mirrors.cpp: who gets memory and who loses it, on a device that only counts.
 */
#include "core/distance.h"
#include "engine/loader.h"
#include "engine/meta.h"
#include "protocol/socket.h"
#include "soon.h"
#include "test.h"

#include <algorithm>
#include <memory>
#include <set>
#include <thread>

using namespace vecgpu;
using engine_test::within;

/* What device.h leaves to the implementation. */
namespace vecgpu {
struct DeviceMirror {
    MirrorShape shape;
    MirrorState state;
    std::vector<uint8_t> vectors;
};
} // namespace vecgpu

namespace {

struct FakeState {
    std::mutex lock;
    std::set<DeviceMirror *> live;
    uint32_t refuse_create = 0, refuse_write = 0; /* so many calls get NoMemory */
    uint32_t commits = 0, writes = 0;
    bool fail_commit = false;
} fake;

uint64_t bytes_of(const MirrorShape &shape)
{
    return uint64_t(shape.nodes) * row_bytes(shape.storage, shape.dimensions);
}

constexpr DeviceApi kFake = {
    .abi = kDeviceAbi,
    .count = nullptr,
    .open = nullptr,
    .close = [](Device *) {},
    .stream_open =
        [](Device *, DeviceStream **stream, char *) {
            static char one;
            *stream = reinterpret_cast<DeviceStream *>(&one);
            return Status::Ok;
        },
    .stream_close = [](DeviceStream *) {},
    .memory_register = [](Device *, void *, size_t, char *) { return Status::Ok; },
    .memory_unregister = [](Device *, void *) {},
    .mirror_bytes = [](Device *, const MirrorShape *shape) { return bytes_of(*shape); },
    .mirror_create =
        [](Device *, const MirrorShape *shape, DeviceMirror **mirror, char *) {
            std::lock_guard lock(fake.lock);
            if (fake.refuse_create > 0) {
                fake.refuse_create--;
                return Status::NoMemory;
            }
            *mirror = new DeviceMirror{*shape, {}, {}};
            fake.live.insert(*mirror);
            return Status::Ok;
        },
    .mirror_drop =
        [](DeviceMirror *mirror) {
            std::lock_guard lock(fake.lock);
            if (fake.live.erase(mirror) != 1)
                abort();
            delete mirror;
        },
    .mirror_write =
        [](DeviceStream *, DeviceMirror *mirror, Region region, uint32_t first, uint32_t count, const void *records, char *) {
            std::lock_guard lock(fake.lock);
            if (fake.live.count(mirror) != 1)
                abort();
            fake.writes++;
            if (fake.refuse_write > 0) {
                fake.refuse_write--;
                return Status::NoMemory;
            }
            if (region == Region::Vectors) {
                size_t row = row_bytes(mirror->shape.storage, mirror->shape.dimensions);
                mirror->vectors.resize(std::max(mirror->vectors.size(), size_t(first + count) * row));
                memcpy(mirror->vectors.data() + first * row, records, count * row);
            }
            return Status::Ok;
        },
    .mirror_commit =
        [](DeviceStream *, DeviceMirror *mirror, const MirrorState *state, char *) {
            std::lock_guard lock(fake.lock);
            if (fake.live.count(mirror) != 1)
                abort();
            fake.commits++;
            mirror->state = *state;
            return fake.fail_commit ? Status::DeviceError : Status::Ok;
        },
    .search = nullptr, /* mirrors of a few nodes are not measured */
    .search_lists = nullptr,
    .build_step = nullptr,
};

constexpr uint32_t kDimensions = 64, kNodes = 1000;
/* capacity() of 1000 nodes and what a mirror of them takes. */
constexpr uint64_t kMirror = uint64_t(kNodes + kNodes / 8 + 1024) * kDimensions * 4;

Meta meta_of(uint32_t number, uint64_t epoch = 1, uint32_t nodes = kNodes)
{
    Meta meta = {};
    meta.magic = kMagic;
    meta.version = kFormatVersion;
    meta.kind = IndexKind::Flat;
    meta.metric = Metric::L2;
    meta.storage = Storage::Float32;
    meta.cell_width = 4;
    meta.dimensions = kDimensions;
    meta.m = 16;
    meta.generation = 1;
    meta.incarnation = 1000 + number;
    meta.epoch = epoch;
    meta.nodes = nodes;
    meta.entry_handle = kNone;
    return meta;
}

IndexKey key_of(uint32_t number, uint32_t generation = 1)
{
    return {1, 2, number, generation, 1000 + number};
}

/* Mirrors of one device with so much memory. */
struct World {
    explicit World(uint64_t limit)
    {
        fake.live.clear();
        fake.refuse_create = fake.refuse_write = fake.commits = fake.writes = 0;
        fake.fail_commit = false;
        DeviceInfo info = {};
        info.streams = info.max_batch = 1;
        device = std::make_unique<OpenDevice>(&kFake, nullptr, info, Lane::Host, 0, limit);
        mirrors = std::make_unique<Mirrors>();
    }
    ~World()
    {
        mirrors.reset();
        CHECK(fake.live.empty() && device->memory_used == 0, "%zu mirrors, %llu bytes are left", fake.live.size(),
              static_cast<unsigned long long>(device->memory_used));
    }

    Status begin(const Meta &meta, uint32_t file, uint32_t session = 1, const char *path = "")
    {
        LoadBeginRequest request = {{1, 2, file, meta.generation, meta.incarnation}, Lane::Host, file};
        response = {};
        return mirrors->begin(session, request, meta, path, *device, clock, &response);
    }
    Status end(bool committed = true, uint32_t session = 1)
    {
        std::shared_ptr<Load> load = mirrors->find_load(response.begin.load, session);
        uint64_t bytes;
        return load == nullptr ? Status::Cold : mirrors->end(load, committed, &bytes);
    }
    Status load(uint32_t number, uint64_t epoch = 1, uint32_t nodes = kNodes)
    {
        Status status = begin(meta_of(number, epoch, nodes), number);
        return status == Status::Ok ? end() : status;
    }
    bool has(uint32_t number, uint32_t generation = 1)
    {
        return mirrors->pin(key_of(number, generation), *device).mirror != nullptr;
    }
    Storage storage(uint32_t number) { return mirrors->pin(key_of(number), *device).mirror->shape.storage; }
    /* As if the last search of this index was so long ago. */
    void age(uint32_t number, uint64_t ms)
    {
        Pin pin = mirrors->pin(key_of(number), *device);
        if (pin.mirror != nullptr)
            pin.mirror->used_ns = now_ns() - ms * 1000000;
    }

    std::unique_ptr<OpenDevice> device;
    std::unique_ptr<Mirrors> mirrors;
    CallClock clock;
    Response response;
};

void test_life()
{
    TEST("a mirror comes with the end of its load");
    {
        World world(UINT64_MAX);
        CHECK(!world.has(1), "nothing there");
        CHECK(world.begin(meta_of(1), 1) == Status::Ok && world.response.begin.load != 0, "begin");
        CHECK(world.response.begin.epoch == 0 && world.response.begin.nodes == 0, "everything is to be sent");
        CHECK(!world.has(1), "not yet");
        CHECK(world.device->memory_used == kMirror, "%llu bytes", static_cast<unsigned long long>(world.device->memory_used));
        CHECK(world.end() == Status::Ok && world.has(1), "end");
        CHECK(!world.has(1, 2) && !world.has(2), "others are others");
        Pin pin = world.mirrors->pin(key_of(1), *world.device);
        CHECK(pin.nodes == kNodes && pin.epoch == 1, "state");
        CHECK(world.end() == Status::Cold, "it ends once");
    }

    TEST("current, busy, and a load that goes on from what is there");
    {
        World world(UINT64_MAX);
        world.load(1, 5);
        CHECK(world.load(1, 5) == Status::Current && world.load(1, 4) == Status::Current, "current");
        CHECK(world.response.begin.epoch == 5 && world.response.begin.nodes == kNodes, "tells what it has");
        CHECK(world.begin(meta_of(1, 6, kNodes + 100), 1) == Status::Ok, "more");
        CHECK(world.response.begin.epoch == 5 && world.response.begin.nodes == kNodes, "from there on");
        uint64_t first = world.response.begin.load;
        CHECK(world.begin(meta_of(1, 7), 1, 2) == Status::Busy, "another session");
        CHECK(world.mirrors->pin(key_of(1), *world.device).nodes == kNodes, "the old state is searched meanwhile");
        CHECK(world.begin(meta_of(1, 7, kNodes + 200), 1) == Status::Ok, "the same session starts anew");
        CHECK(world.mirrors->find_load(first, 1) == nullptr, "the first load is gone");
        CHECK(world.mirrors->find_load(world.response.begin.load, 2) == nullptr, "loads belong to sessions");
        {
            std::shared_ptr<Load> busy = world.mirrors->find_load(world.response.begin.load, 1);
            CHECK(world.begin(meta_of(1, 8), 1) == Status::Busy, "not while the engine works on it");
            busy->active_ns = now_ns() - 2 * kLoadForgottenNs;
            world.mirrors->cancel_forgotten();
            CHECK(world.begin(meta_of(1, 8), 1, 2) == Status::Busy, "not even a forgotten one");
        }
        world.mirrors->cancel_forgotten();
        CHECK(world.begin(meta_of(1, 8, kNodes + 300), 1, 2) == Status::Ok, "a forgotten load is cancelled");
        CHECK(world.end(true, 2) == Status::Ok, "end");
        Pin pin = world.mirrors->pin(key_of(1), *world.device);
        CHECK(pin.nodes == kNodes + 300 && pin.epoch == 8 && fake.live.size() == 1, "in place");
    }

    TEST("a given up load leaves the old state; a new mirror vanishes");
    {
        World world(UINT64_MAX);
        world.load(1, 1);
        world.begin(meta_of(1, 2, kNodes + 1), 1);
        CHECK(world.end(false) == Status::Ok, "end");
        CHECK(world.mirrors->pin(key_of(1), *world.device).nodes == kNodes, "old state");
        world.begin(meta_of(2), 2);
        CHECK(world.end(false) == Status::Ok && !world.has(2), "nothing");
        world.mirrors->sweep();
        CHECK(fake.live.size() == 1 && world.device->memory_used == kMirror, "memory is free again");
    }

    TEST("an index that outgrew its mirror gets a larger one, and keeps the old one until then");
    {
        World world(UINT64_MAX);
        world.load(1, 1);
        CHECK(world.begin(meta_of(1, 2, 3 * kNodes), 1) == Status::Ok && world.response.begin.epoch == 0, "from the start");
        CHECK(world.mirrors->pin(key_of(1), *world.device).nodes == kNodes && fake.live.size() == 2, "beside it");
        Pin held = world.mirrors->pin(key_of(1), *world.device);
        CHECK(world.end() == Status::Ok, "end");
        world.mirrors->sweep();
        CHECK(fake.live.size() == 2, "a search still holds the old one");
        held = {};
        world.mirrors->sweep();
        CHECK(fake.live.size() == 1 && world.mirrors->pin(key_of(1), *world.device).nodes == 3 * kNodes, "then it goes");
    }

    TEST("a session that is gone takes its loads along");
    {
        World world(UINT64_MAX);
        world.begin(meta_of(1), 1, 7);
        world.begin(meta_of(2), 2, 8);
        world.mirrors->drop_session(7);
        world.mirrors->sweep();
        CHECK(fake.live.size() == 1, "one is left");
        CHECK(world.begin(meta_of(1), 1, 8) == Status::Ok, "not busy any more");
        world.mirrors->drop_session(8);
    }

    TEST("a new generation replaces the old one, another index in the same file as well");
    {
        World world(UINT64_MAX);
        world.load(1);
        world.load(2);
        Meta next = meta_of(1);
        next.generation = 2;
        CHECK(world.begin(next, 1) == Status::Ok && world.has(1), "both are there while it is loaded");
        CHECK(world.end() == Status::Ok && !world.has(1) && world.has(1, 2) && world.has(2), "then one");
        CHECK(world.load(1) == Status::Ok && world.has(1, 2), "a late load of the old one does no harm");
        Meta other = meta_of(1);
        other.incarnation = 77;
        CHECK(world.begin(other, 1) == Status::Ok && world.end() == Status::Ok, "reused file");
        CHECK(!world.has(1, 2) && !world.has(1), "the old index is gone");
    }
}

void test_eviction()
{
    TEST("evict takes all generations and cancels loads");
    {
        World world(UINT64_MAX);
        Meta next = meta_of(1);
        next.generation = 2;
        world.begin(next, 1);
        world.end();
        world.load(1);
        world.load(2);
        CHECK(world.begin(meta_of(1, 9), 1) == Status::Ok, "begin");
        CHECK(world.mirrors->evict(key_of(1)) == 2 * kMirror, "bytes");
        CHECK(!world.has(1) && !world.has(1, 2) && world.has(2) && fake.live.size() == 1, "gone");
        CHECK(world.end() == Status::Cold && !world.has(1), "a cancelled load does not bring it back");
        CHECK(world.mirrors->evict(key_of(1)) == 0, "nothing left");
    }

    TEST("nobody frees what a search holds");
    {
        World world(UINT64_MAX);
        world.load(1);
        Pin pin = world.mirrors->pin(key_of(1), *world.device);
        world.mirrors->evict(key_of(1));
        CHECK(!world.has(1) && fake.live.size() == 1, "held");
        pin = {};
        world.mirrors->sweep();
        CHECK(fake.live.empty(), "freed");
    }

    TEST("room is made by the least recently used");
    {
        World world(3 * kMirror);
        world.load(1);
        world.load(2);
        world.load(3);
        world.age(1, 3000);
        world.age(2, 9000);
        world.age(3, 5000);
        CHECK(world.load(4) == Status::Ok, "fits");
        CHECK(world.has(1) && !world.has(2) && world.has(3) && world.has(4), "the oldest went");
        CHECK(world.load(5) == Status::Ok && !world.has(3) && world.has(1), "then the next");
    }

    TEST("two indexes that do not fit together do not take turns");
    {
        World world(kMirror + kMirror / 4);
        for (uint64_t ms : {0, 900}) {
            Status status;
            within(kInUseNs - ms * 1000000, [&] {
                world.mirrors->evict(key_of(2));
                world.load(1);
                world.age(1, ms);
                status = world.load(2);
            });
            CHECK(status == Status::NoMemory && world.has(1), "in use");
        }
        world.age(1, 1100);
        CHECK(world.load(2) == Status::Ok && !world.has(1), "not any more");
    }

    TEST("what is held is not evicted, and nothing is evicted in vain");
    {
        World world(2 * kMirror);
        world.load(1);
        world.load(2);
        world.age(1, 5000);
        world.age(2, 5000);
        Pin pin = world.mirrors->pin(key_of(1), *world.device);
        CHECK(world.load(3, 1, 40 * kNodes) == Status::NoMemory, "too large for what could go, even as int8");
        CHECK(world.has(1) && world.has(2), "all are there");
        CHECK(world.load(3) == Status::Ok && world.has(1) && !world.has(2), "the other one goes");
    }

    TEST("an index that grew pushes its own predecessor out if it must");
    {
        World world(kMirror * 11 / 5);
        Status status;
        within(900000000, [&] { /* it waits for a second */
            world.mirrors->evict(key_of(1));
            world.load(1);
            Pin pin = world.mirrors->pin(key_of(1), *world.device);
            std::thread search([&] {
                usleep(50000);
                pin = {};
            });
            status = world.begin(meta_of(1, 2, 3 * kNodes), 1);
            search.join();
        });
        CHECK(status == Status::Ok, "waits for the search that holds it");
        CHECK(!world.has(1), "cold meanwhile");
        CHECK(world.end() == Status::Ok && world.has(1), "end");
        CHECK(world.storage(1) == Storage::Float32, "as it is");
    }

    TEST("a device without memory: one is evicted, one retry");
    {
        World world(UINT64_MAX);
        world.load(1);
        world.load(2);
        world.age(1, 5000);
        world.age(2, 4000);
        fake.refuse_create = 1;
        CHECK(world.load(3) == Status::Ok && !world.has(1) && world.has(2), "one went");
        within(kInUseNs, [&] {
            fake.refuse_create = 0;
            world.load(3);
            world.age(3, 0);
            fake.refuse_create = 100;
            CHECK(world.load(4) == Status::NoMemory, "no");
        });
        fake.refuse_create = 0;
        CHECK(world.has(3), "in use stays");
    }

    TEST("dropped, truncated and present files");
    {
        World world(UINT64_MAX);
        std::string base = "/tmp/vecgpu-mirrors-" + std::to_string(getpid());
        auto file = [&](int n, const char *content) {
            std::string path = base + std::to_string(n);
            FILE *out = fopen(path.c_str(), "w");
            fputs(content, out);
            fclose(out);
            return path;
        };
        std::string paths[3] = {file(1, "page"), file(2, "page"), file(3, "page")};
        for (uint32_t i = 1; i <= 3; i++) {
            world.begin(meta_of(i), i, 1, paths[i - 1].c_str());
            world.end();
        }
        world.load(4); /* without a path */
        world.mirrors->evict_vanished();
        CHECK(world.has(1) && world.has(2) && world.has(3) && world.has(4), "all there");
        unlink(paths[0].c_str());
        file(2, "");
        world.mirrors->evict_vanished();
        CHECK(!world.has(1) && !world.has(2) && world.has(3) && world.has(4), "two gone");
        CHECK(fake.live.size() == 2, "memory");
        unlink(paths[1].c_str());
        unlink(paths[2].c_str());
    }
}

void test_storage()
{
    TEST("narrower storage where memory is short");
    {
        World world(kMirror * 6 / 10);
        CHECK(world.load(1) == Status::Ok && world.storage(1) == Storage::Float16, "float16");
    }
    {
        World world(kMirror * 3 / 10);
        CHECK(world.load(1) == Status::Ok && world.storage(1) == Storage::Int8, "int8");
        CHECK(world.load(1, 2, kNodes + 5) == Status::Ok && world.response.begin.epoch == 1, "goes on");
    }
    {
        World world(kMirror * 6 / 10);
        world.mirrors->refuse_storage(key_of(1), Storage::Float16);
        CHECK(world.load(1) == Status::Ok && world.storage(1) == Storage::BFloat16, "bfloat16");
        world.mirrors->refuse_storage(key_of(1), Storage::BFloat16);
        CHECK(world.begin(meta_of(1, 2), 1) == Status::Ok && world.response.begin.epoch == 0, "a new mirror");
        world.end();
        CHECK(world.storage(1) == Storage::Int8, "int8");
    }
    {
        World world(kMirror / 10);
        CHECK(world.load(1) == Status::NoMemory && world.response.message[0] != 0, "nothing fits");
    }

    TEST("what is written is converted; what cannot be is remembered");
    {
        World world(kMirror * 6 / 10);
        Devices none;
        StagingTable staging;
        Loader loader(none, *world.mirrors, staging);
        Loader::Worker worker;
        size_t bytes = kNodes * kDimensions * sizeof(float);
        int fd = -1;
        void *memory = nullptr;
        CHECK(memory_create("test", bytes, &fd) == 0 && memory_map(fd, bytes, &memory) == 0, "staging");
        staging.put(1, std::make_shared<Staging>(Mapping(memory, bytes)));
        float *rows = static_cast<float *>(memory);
        for (uint32_t i = 0; i < kNodes * kDimensions; i++)
            rows[i] = float(i % 2000) / 8 - 100;
        Response response = {};
        std::vector<uint8_t> payload(kQueryBytes);
        auto write = [&](uint32_t first, uint32_t count) {
            Run run = {uint32_t(Region::Vectors), first, count, 0, first * kDimensions * sizeof(float)};
            memcpy(payload.data(), &run, sizeof run);
            return loader.write(worker, world.clock, 1, {world.response.begin.load, 1, 0}, payload.data(), &response);
        };
        auto end = [&] { return loader.end(worker, world.clock, 1, {world.response.begin.load, 0, 0}, &response); };
        CHECK(world.begin(meta_of(1), 1) == Status::Ok, "begin");
        CHECK(write(0, kNodes - 7) == Status::Ok && write(kNodes - 7, 7) == Status::Ok, "write");
        DeviceMirror *mirror = *fake.live.begin();
        std::vector<float> back(kDimensions);
        for (uint32_t i = 0; i < kNodes; i++) {
            decode_row(Storage::Float16, mirror->vectors.data() + i * row_bytes(Storage::Float16, kDimensions), kDimensions,
                       back.data());
            CHECK(memcmp(back.data(), rows + i * kDimensions, kDimensions * sizeof(float)) == 0, "row %u", i);
        }
        CHECK(end() == Status::Ok && response.end.bytes > 0, "end");

        /* The next rows do not fit: the load fails, the mirror stays, another one is made. */
        rows[3] = 70000;
        CHECK(world.begin(meta_of(1, 2, kNodes + 3), 1) == Status::Ok, "begin");
        CHECK(write(0, 3) == Status::Ok, "vectors that are there are not written again");
        rows[0] = 70000;
        Run run = {uint32_t(Region::Vectors), kNodes, 3, 0, 0};
        memcpy(payload.data(), &run, sizeof run);
        LoadWriteRequest request = {world.response.begin.load, 1, 0};
        CHECK(loader.write(worker, world.clock, 1, request, payload.data(), &response) == Status::Unsupported, "write");
        CHECK(loader.write(worker, world.clock, 1, request, payload.data(), &response) == Status::Unsupported, "again");
        CHECK(end() == Status::Unsupported && response.message[0] != 0, "end");
        CHECK(world.mirrors->pin(key_of(1), *world.device).nodes == kNodes, "the old state");
        world.age(1, 5000);
        CHECK(world.begin(meta_of(1, 2, kNodes + 3), 1) == Status::Ok && world.response.begin.epoch == 0, "from the start");
        CHECK(write(0, kNodes) == Status::Ok && end() == Status::Ok && world.storage(1) == Storage::BFloat16, "bfloat16");
    }

    TEST("a write without memory: one is evicted, one retry; a commit that fails is none");
    {
        World world(UINT64_MAX);
        Devices none;
        StagingTable staging;
        Loader loader(none, *world.mirrors, staging);
        Loader::Worker worker;
        int fd = -1;
        void *memory = nullptr;
        memory_create("test", 4096, &fd);
        memory_map(fd, 4096, &memory);
        staging.put(1, std::make_shared<Staging>(Mapping(memory, 4096)));
        std::vector<uint8_t> payload(kQueryBytes);
        Run run = {uint32_t(Region::Slots), 0, 10, 0, 0};
        memcpy(payload.data(), &run, sizeof run);
        Response response = {};
        world.load(1);
        world.age(1, 5000);
        world.begin(meta_of(2), 2);
        LoadWriteRequest request = {world.response.begin.load, 1, 0};
        fake.refuse_write = 1;
        CHECK(loader.write(worker, world.clock, 1, request, payload.data(), &response) == Status::Ok && !world.has(1), "retry");
        fake.fail_commit = true;
        CHECK(loader.end(worker, world.clock, 1, {world.response.begin.load, 0, 0}, &response) == Status::DeviceError, "end");
        CHECK(!world.has(2), "no mirror");
    }
}

void test_meta()
{
    TEST("metapages that cannot be");
    Meta good = meta_of(1);
    good.kind = IndexKind::Hnsw;
    good.upper = 60;
    good.entry_handle = 59;
    good.entry_level = 2;
    CHECK(meta_fault(good, key_of(1)) == nullptr, "the good one");
    auto bad = [&](const char *what, auto change) {
        Meta meta = good;
        change(&meta);
        CHECK(meta_fault(meta, key_of(1)) != nullptr, "%s", what);
    };
    bad("magic", [](Meta *m) { m->magic++; });
    bad("version", [](Meta *m) { m->version++; });
    bad("kind", [](Meta *m) { m->kind = IndexKind(9); });
    bad("metric", [](Meta *m) { m->metric = Metric(0); });
    bad("storage", [](Meta *m) { m->storage = Storage(7); });
    bad("width", [](Meta *m) { m->cell_width = 8; });
    bad("dimensions", [](Meta *m) { m->dimensions = 0; });
    bad("dimensions", [](Meta *m) { m->dimensions = kMaxDimensions + 1; });
    bad("m", [](Meta *m) { m->m = 0; });
    bad("m", [](Meta *m) { m->m = 60000; });
    bad("generation", [](Meta *m) { m->generation++; });
    bad("incarnation", [](Meta *m) { m->incarnation++; });
    bad("nodes", [](Meta *m) { m->nodes = kNone; });
    bad("nodes for the cells", [](Meta *m) { m->cell_width = 2; m->nodes = 65536; });
    bad("upper", [](Meta *m) { m->upper = kNone; });
    bad("entry", [](Meta *m) { m->entry_handle = 60; });
    bad("entry", [](Meta *m) { m->entry_level = 0; m->entry_handle = kNodes; });
    bad("level", [](Meta *m) { m->entry_level = kMaxLevel + 1; });
    bad("level", [](Meta *m) { m->entry_level = -1; });
    bad("norm", [](Meta *m) { m->max_norm = -1; });
    bad("norm", [](Meta *m) { m->max_norm = __builtin_nanf(""); });

    TEST("room to grow is bounded by what cells can name");
    Meta narrow = good;
    narrow.cell_width = 2;
    narrow.nodes = 65000;
    MirrorShape shape = shape_with_slack(narrow, narrow.storage);
    CHECK(shape.nodes == 65535 && shape.upper == 60 + 7 + 1024, "%u, %u", shape.nodes, shape.upper);
    Meta wide = good;
    wide.nodes = UINT32_MAX - 1;
    CHECK(shape_with_slack(wide, wide.storage).nodes == UINT32_MAX - 1, "no overflow");
}

} // namespace

int main()
{
    test_life();
    test_eviction();
    test_storage();
    test_meta();
    return test::finish();
}
