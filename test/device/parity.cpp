/*
 * parity.cpp: every operation of engine/device.h on the host device and on other devices, held against each other and against the truth.
 *
 *   parity [--bench | --large] [--sample FOLDER] [--number N] [DEVICE.so]
 *
 * Without a shared object the host device alone is tested. --number: which of the shared object's devices. --sample: the SIFT sample
 * (default: $VECGPU_SIFT20K, test/data/sift20k). --bench: no tests, figures of every device. --large: only mirrors beyond 32-bit
 * offsets (105 GB of device memory). VECGPU_PARITY_VERBOSE=1 shows all recalls.
 */
#include "parity.h"

#include "engine/host_device.h"

#include <dlfcn.h>

namespace parity {

void test_calls()
{
    Data rows = random_data(100, 8, 1, 0), queries = random_data(4, 8, 1, 1);
    Options options;
    options.m = 4;
    Index index = make_index(rows, options);
    for (const Subject &subject : all()) {
        const DeviceApi *api = subject.api;
        char error[kErrorBytes];
        TEST((subject.name + ": open and close").c_str());
        CHECK(api->abi == kDeviceAbi, "abi %u", api->abi);
        uint32_t devices = 0;
        CHECK(api->count(&devices, error) == Status::Ok && devices > 0, "%u devices", devices);
        CHECK(subject.info.streams > 0 && subject.info.max_batch > 0 && subject.info.name[0], "info");
        CHECK(memchr(subject.info.name, 0, sizeof subject.info.name), "name");
        Device *device = nullptr;
        DeviceInfo info;
        error[0] = 0;
        Status status = api->open(devices + 1000, &device, &info, error);
        CHECK(status != Status::Ok && error[0] && !device, "opened a device that is not there: %d", int(status));
        CHECK(api->open(devices + 1000, &device, &info, nullptr) == status, "without room for a message");
        DeviceStream *streams[3];
        for (DeviceStream *&stream : streams)
            CHECK(api->stream_open(subject.device, &stream, error) == Status::Ok, "%s", error);
        for (DeviceStream *stream : streams)
            api->stream_close(stream);
        std::vector<char> memory(100000);
        CHECK(api->memory_register(subject.device, memory.data(), memory.size(), error) == Status::Ok, "%s", error);
        api->memory_unregister(subject.device, memory.data());

        TEST((subject.name + ": bytes of a mirror").c_str());
        MirrorShape shape = shape_of(index);
        uint64_t sum = index.vectors.size() + index.links.size() + index.slots.size() + index.upper_records.size();
        uint64_t bytes = api->mirror_bytes(subject.device, &shape);
        if (subject.reference)
            CHECK(bytes >= sum && bytes < sum + 4 * 4096, "%" PRIu64 " for %" PRIu64, bytes, sum);
        CHECK(bytes > 0, "nothing");
        shape.nodes = 3000000000u;
        shape.dimensions = 2000;
        CHECK(api->mirror_bytes(subject.device, &shape) > 3000000000000, "64 bits");
        DeviceMirror *huge = nullptr;
        shape.dimensions = 16000;
        error[0] = 0;
        status = api->mirror_create(subject.device, &shape, &huge, error);
        CHECK(status == Status::NoMemory && error[0] && !huge, "status %d for 192 TB", int(status));

        TEST((subject.name + ": a mirror without a commit is empty").c_str());
        shape = shape_of(index);
        DeviceMirror *empty = nullptr;
        CHECK(api->mirror_create(subject.device, &shape, &empty, error) == Status::Ok, "%s", error);
        Hit hit;
        uint32_t count = 99;
        BatchQuery query = {queries.at(0), &hit, &count};
        for (SearchForm form : {SearchForm::Graph, SearchForm::Exact}) {
            BatchParams params = {form, 1, 10, 8, nullptr};
            count = 99;
            status = api->search(subject.stream, empty, &params, &query, 1, nullptr, nullptr, nullptr, error);
            CHECK(status == Status::Ok && count == 0, "%d, %u hits", int(status), count);
            CHECK(api->search(subject.stream, empty, &params, &query, 0, nullptr, nullptr, nullptr, error) ==
                      Status::Ok,
                  "no queries");
        }

        TEST((subject.name + ": bad requests").c_str());
        uint8_t record[64] = {};
        auto write = [&](Region region, uint32_t first, uint32_t n) {
            error[0] = 0;
            Status got = api->mirror_write(subject.stream, empty, region, first, n, record, error);
            CHECK(got == Status::BadRequest && error[0], "write %u of %u: %d", first, unsigned(region), int(got));
        };
        write(Region::Vectors, index.nodes, 1);
        write(Region::Links, index.nodes - 1, 2);
        write(Region::Slots, UINT32_MAX, 2);
        write(Region::Slots, 1, UINT32_MAX);
        write(Region::Upper, index.upper, 1);
        write(Region::Twins, 0, 1);
        MirrorState state = state_of(index);
        state.nodes++;
        CHECK(api->mirror_commit(subject.stream, empty, &state, error) == Status::BadRequest, "nodes beyond");
        state = state_of(index);
        state.upper++;
        CHECK(api->mirror_commit(subject.stream, empty, &state, error) == Status::BadRequest, "upper beyond");
        auto ask = [&](BatchParams params, uint32_t n) {
            error[0] = 0;
            std::vector<BatchQuery> batch(n, query);
            Status got = api->search(subject.stream, empty, &params, batch.data(), n, nullptr, nullptr, nullptr, error);
            CHECK(got == Status::BadRequest && error[0], "search: %d", int(got));
        };
        ask({SearchForm::Exact, 0, 10, 8, nullptr}, 1);
        ask({SearchForm::Exact, 1, 10, 7, nullptr}, 1);
        ask({SearchForm(0), 1, 10, 8, nullptr}, 1);
        ask({SearchForm(3), 1, 10, 8, nullptr}, 1);
        ask({SearchForm::Exact, 1, 10, 8, nullptr}, subject.info.max_batch + 1);
        DeviceMirror *none = nullptr;
        auto create = [&](auto change) {
            MirrorShape bad = shape_of(index);
            change(bad);
            Status got = api->mirror_create(subject.device, &bad, &none, error);
            CHECK(got == Status::BadRequest && !none, "create: %d", int(got));
        };
        create([](MirrorShape &s) { s.kind = IndexKind(9); });
        create([](MirrorShape &s) { s.metric = Metric(0); });
        create([](MirrorShape &s) { s.storage = Storage(5); });
        create([](MirrorShape &s) { s.cell_width = 1; });
        create([](MirrorShape &s) { s.cell_width = 5; });
        create([](MirrorShape &s) { s.dimensions = 0; });
        create([](MirrorShape &s) { s.dimensions = kMaxDimensions + 1; });
        create([](MirrorShape &s) { s.m = 0; });
        create([](MirrorShape &s) { s.nodes = kNone; });
        api->mirror_drop(empty);
    }
}

} // namespace parity

using namespace parity;

int main(int argc, char **argv)
{
    const char *folder = getenv("VECGPU_SIFT20K"), *object = nullptr;
    uint32_t number = 0;
    bool figures = false, large = false;
    for (int i = 1; i < argc; i++) {
        std::string word = argv[i];
        if (word == "--bench")
            figures = true;
        else if (word == "--large")
            large = true;
        else if (word == "--sample" && i + 1 < argc)
            folder = argv[++i];
        else if (word == "--number" && i + 1 < argc)
            number = uint32_t(atoi(argv[++i]));
        else
            object = argv[i];
    }
    if (!folder)
        folder = "test/data/sift20k";
    unsetenv("VECGPU_FAULT_FILE");
    all().push_back(open_subject("host", host_device_api(), 0, true));
    if (object) {
        void *library = dlopen(object, RTLD_NOW | RTLD_LOCAL);
        DeviceEntryPoint entry = library ? reinterpret_cast<DeviceEntryPoint>(dlsym(library, kDeviceEntry)) : nullptr;
        if (!entry) {
            fprintf(stderr, "%s: %s\n", object, dlerror());
            return 2;
        }
        const DeviceApi *api = entry();
        char error[kErrorBytes] = "";
        uint32_t devices = 0;
        if (api->abi != kDeviceAbi || api->count(&devices, error) != Status::Ok || devices == 0) {
            fprintf(stderr, "%s: no device: %s\n", object, error);
            return 2;
        }
        all().push_back(open_subject("device", api, number, false));
        test::note("device: %s, %u streams, batches of %u", all()[1].info.name, all()[1].info.streams,
                   all()[1].info.max_batch);
    }
    if (figures) {
        bench(folder);
    } else if (large) {
        test_far();
    } else {
        test_calls();
        test_exact();
        test_graph();
        test_sample(folder);
        test_writes();
        test_faults();
    }
    for (Subject &subject : all())
        close_subject(&subject);
    return figures ? 0 : test::finish();
}
