/*
 * hash_test.cu: the hash tables against sets on the CPU, then figures (hash_bench.cu).
 *
 *   hash_test            tests: slots of 8 to 64 bits, compact and not, many threads putting the same key, ends of the
 *                        domain, fills up to 95 % and beyond what fits
 *   hash_test --small    fewer and smaller, for compute-sanitizer
 *   hash_test --bench    figures; --bench shared|global for a part of them
 */
#include "hash_bench.h"
#include "hash_cuckoo.cuh"
#include "hash_iceberg.cuh"
#include "hash_shared.cuh"

#include <algorithm>
#include <cstdarg>
#include <random>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

using namespace vecgpu;
using namespace vecgpu::cuda;

static int failures, runs;
static bool small;

/* Prints why, and counts, a run that failed. */
struct TestRun {
    explicit TestRun(std::string what) : name(std::move(what)) { runs++; }
    ~TestRun() { failures += !good; }

    __attribute__((format(printf, 3, 4))) void expect(bool condition, const char *format, ...)
    {
        if (condition || !good)
            return;
        good = false;
        va_list arguments;
        va_start(arguments, format);
        printf("not ok %s: ", name.c_str());
        vprintf(format, arguments);
        printf("\n");
        va_end(arguments);
    }

    std::string name;
    bool good = true;
};

template <class T>
static DeviceBuffer<T> to_device(const std::vector<T> &v)
{
    DeviceBuffer<T> buffer(v.size());
    check(cudaMemcpy(buffer.data(), v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice), "copy");
    return buffer;
}

template <class T>
static std::vector<T> to_host(const T *data, size_t count)
{
    std::vector<T> v(count);
    check(cudaMemcpy(v.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost), "copy");
    return v;
}

template <class Key>
static Key last_key(uint32_t bits)
{
    return Key(~Key(0)) >> (8 * sizeof(Key) - bits);
}

/* `count` different keys, both ends of the domain among them; then as many others as there are, up to `count`. */
template <class Key>
static std::vector<Key> keys_of(const std::string &kind, uint32_t bits, size_t count, std::vector<Key> *others)
{
    const double domain = std::ldexp(1.0, int(bits));
    const auto order = Permutation<Key>::make(bits, 77);
    const Key step = kind == "strided" ? Key(domain / double(2 * count + 2)) | 1 : 1;
    std::vector<Key> keys = {0, last_key<Key>(bits)};
    std::unordered_set<Key> known(keys.begin(), keys.end());
    others->clear();
    for (size_t i = 0; double(i) < domain && others->size() < count; i++) {
        const Key key = kind == "random" ? order.apply(Key(i)) : Key(Key(i) * step) & last_key<Key>(bits);
        if (known.insert(key).second)
            (keys.size() < count ? &keys : others)->push_back(key);
    }
    return keys;
}

template <class Key>
static std::vector<Key> copies_of(const std::vector<Key> &keys, int copies, bool adjacent)
{
    std::vector<Key> inputs;
    for (Key key : keys)
        inputs.insert(inputs.end(), size_t(copies), key);
    if (!adjacent)
        std::shuffle(inputs.begin(), inputs.end(), std::mt19937(5));
    return inputs;
}

struct Tally {
    int put = 0, seen = 0, full = 0;
};

/* Exactly one New a key, or all Full. Returns the keys that were put. */
template <class Key>
static std::unordered_set<Key> check_outcome(TestRun &run, const std::vector<Key> &inputs,
                                             const std::vector<Put> &results)
{
    std::unordered_map<Key, Tally> tallies;
    for (size_t i = 0; i < inputs.size(); i++) {
        Tally &t = tallies[inputs[i]];
        (results[i] == Put::New ? t.put : results[i] == Put::Seen ? t.seen : t.full)++;
    }
    std::unordered_set<Key> in;
    for (auto &[key, t] : tallies) {
        run.expect(t.put == 1 ? t.full == 0 : t.put == 0 && t.seen == 0, "key %llx: %d new, %d seen, %d full",
                   (unsigned long long)key, t.put, t.seen, t.full);
        if (t.put)
            in.insert(key);
    }
    return in;
}

/* Occupied slots have no free one before them, and hold `in`, each key once. */
template <class Table, class Key>
static void check_yard(TestRun &run, const Table &table, const typename Table::Slot *slots, uint32_t bits,
                       int bucket_slots, bool is_front, std::unordered_set<Key> &found)
{
    auto host = to_host(slots, size_t(bucket_slots) << bits);
    for (size_t i = 0; i < host.size(); i++) {
        if (host[i] == 0)
            continue;
        run.expect(i % bucket_slots == 0 || host[i - 1] != 0, "hole before slot %zu", i);
        const Key key = table.key_of(host[i], uint32_t(i / bucket_slots), is_front);
        run.expect(found.insert(key).second, "two copies of key %llx", (unsigned long long)key);
    }
}

template <class Table>
static void check_iceberg(TestRun &run, const IcebergTable<Table> &table,
                          const std::unordered_set<typename Table::Key> &in)
{
    std::unordered_set<typename Table::Key> found;
    const Table &view = table.view();
    check_yard(run, view, view.front, view.front_bits, Table::kFrontSlots, true, found);
    check_yard(run, view, view.back, view.back_bits, Table::kBackSlots, false, found);
    run.expect(found == in, "the table holds %zu keys, not the %zu that were put", found.size(), in.size());
}

template <class Table, int kLanes>
static void test_iceberg(const std::string &name, uint32_t key_bits, uint32_t front_bits, uint32_t back_bits,
                         const std::string &kind, double fill, int copies, bool adjacent)
{
    using Key = typename Table::Key;
    TestRun run(name + ", " + std::to_string(kLanes) + " lanes, " + kind + ", fill " + std::to_string(fill) + ", " +
                std::to_string(copies) + (adjacent ? " adjacent copies" : " copies"));
    IcebergTable<Table> table(key_bits, front_bits, back_bits, 1);
    std::vector<Key> others;
    const std::vector<Key> keys = keys_of<Key>(kind, key_bits, size_t(double(table.slots()) * fill), &others);
    const std::vector<Key> inputs = copies_of(keys, copies, adjacent);
    auto device_inputs = to_device(inputs), device_keys = to_device(keys), device_others = to_device(others);
    DeviceBuffer<Put> results(inputs.size());

    table.template run<TableOp::FindOrPut, kLanes>(device_inputs.data(), inputs.size(), results.data(), nullptr);
    const auto in = check_outcome(run, inputs, to_host(results.data(), inputs.size()));
    check_iceberg(run, table, in);
    /* Small tables are uneven, and a back yard of a few buckets is full early. */
    run.expect(fill > 0.9 || double(in.size()) >= (fill < 0.8 ? 1 : 0.95) * double(keys.size()),
               "only %zu of %zu keys found room", in.size(), keys.size());
    run.expect(fill <= 1 || in.size() < keys.size(), "more keys than slots");

    table.template run<TableOp::Find, kLanes>(device_keys.data(), keys.size(), results.data(), nullptr);
    auto found = to_host(results.data(), keys.size());
    for (size_t i = 0; i < keys.size(); i++)
        run.expect((found[i] == Put::Seen) == (in.count(keys[i]) == 1), "find of key %llx",
                   (unsigned long long)keys[i]);
    table.template run<TableOp::Find, kLanes>(device_others.data(), others.size(), results.data(), nullptr);
    found = to_host(results.data(), others.size());
    for (size_t i = 0; i < others.size(); i++)
        run.expect(found[i] == Put::New, "found key %llx, which is not there", (unsigned long long)others[i]);

    table.clear(nullptr);
    table.template run<TableOp::Put, kLanes>(device_keys.data(), keys.size(), results.data(), nullptr);
    check_iceberg(run, table, check_outcome(run, keys, to_host(results.data(), keys.size())));
}

template <class Table, int kLanes>
static void test_iceberg_shapes(const std::string &name, uint32_t key_bits, uint32_t front_bits, uint32_t back_bits)
{
    for (const char *kind : {"random", "sequential", "strided"})
        for (double fill : {0.3, 0.8, 0.9, 0.95, 1.3})
            for (int copies : {1, 2, 33}) {
                if (small && (kind[0] != 'r' || fill == 0.3 || fill == 0.95 || copies == 1))
                    continue;
                if (std::ldexp(1.0, int(key_bits)) <
                    fill * ((uint64_t(Table::kFrontSlots) << front_bits) + (uint64_t(Table::kBackSlots) << back_bits)))
                    continue;
                test_iceberg<Table, kLanes>(name, key_bits, front_bits, back_bits, kind, fill, copies, false);
                if (copies == 33)
                    test_iceberg<Table, kLanes>(name, key_bits, front_bits, back_bits, kind, fill, copies, true);
            }
}

template <class Table, int kLanes>
static void test_cuckoo(const std::string &name, uint32_t key_bits, uint32_t bucket_bits, const std::string &kind,
                        double fill)
{
    using Key = typename Table::Key;
    TestRun run(name + ", " + std::to_string(kLanes) + " lanes, " + kind + ", fill " + std::to_string(fill));
    CuckooTable<Table> table(key_bits, bucket_bits);
    std::vector<Key> others;
    const std::vector<Key> keys = keys_of<Key>(kind, key_bits, size_t(double(table.slots()) * fill), &others);
    std::vector<uint32_t> values(keys.size());
    for (size_t i = 0; i < values.size(); i++)
        values[i] = uint32_t(i * 2654435761u) & 0xfffffffeu;
    auto device_keys = to_device(keys), device_others = to_device(others);
    auto device_values = to_device(values);
    DeviceBuffer<uint32_t> results(std::max(keys.size(), others.size()));

    const bool built = table.template build<kLanes>(device_keys.data(), device_values.data(), keys.size(), 1, nullptr);
    run.expect(built || fill > 0.95, "not built");
    run.expect(!built || fill <= 1, "more keys than slots");
    if (!built)
        return;
    const Table &view = table.view();
    const auto slots = to_host(view.slots, table.slots());
    size_t occupied = 0;
    for (auto slot : slots)
        occupied += slot != 0;
    run.expect(occupied == keys.size(), "%zu slots for %zu keys", occupied, keys.size());

    table.template find<kLanes>(device_keys.data(), keys.size(), results.data(), nullptr);
    auto found = to_host(results.data(), keys.size());
    for (size_t i = 0; i < keys.size(); i++)
        if constexpr (Table::kValueBits > 0)
            run.expect(found[i] == values[i], "value of key %llx", (unsigned long long)keys[i]);
        else
            run.expect(found[i] < slots.size() && slots[found[i]] != 0 &&
                           view.key_of(slots[found[i]], found[i] / Table::kSlots) == keys[i],
                       "slot of key %llx", (unsigned long long)keys[i]);
    table.template find<kLanes>(device_others.data(), others.size(), results.data(), nullptr);
    found = to_host(results.data(), others.size());
    for (size_t i = 0; i < others.size(); i++)
        run.expect(found[i] == kNotInTable, "found key %llx, which is not there", (unsigned long long)others[i]);
}

template <class Table, int kLanes>
static void test_cuckoo_shapes(const std::string &name, uint32_t key_bits, uint32_t bucket_bits)
{
    for (const char *kind : {"random", "sequential", "strided"})
        for (double fill : {0.1, 0.5, 0.9, 0.95, 1.0, 1.1})
            if ((!small || (kind[0] == 'r' && fill >= 0.9)) &&
                std::ldexp(1.0, int(key_bits)) >= fill * double(uint64_t(Table::kSlots) << bucket_bits))
                test_cuckoo<Table, kLanes>(name, key_bits, bucket_bits, kind, fill);
}

/* Puts ids[i] into one set in shared memory by all threads of a block; what was told goes to results, the set to `words`. */
template <class Set>
__global__ void shared_put_kernel(const uint32_t *ids, uint32_t count, Put *results, Put *again, uint32_t *words)
{
    extern __shared__ uint4 memory[];
    uint32_t *table = reinterpret_cast<uint32_t *>(memory);
    for (uint32_t i = threadIdx.x; i < Set::kWords; i += blockDim.x)
        table[i] = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
        results[i] = Set::put(table, ids[i]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x)
        again[i] = Set::put(table, ids[i]);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < Set::kWords; i += blockDim.x)
        words[i] = table[i];
}

template <class Set>
static void test_shared(const std::string &name, uint32_t id_bits, const std::string &kind, uint32_t count, int copies,
                        double most_full, bool adjacent)
{
    TestRun run(name + ", " + kind + ", " + std::to_string(count) + " ids" + (adjacent ? ", adjacent copies" : ""));
    std::vector<uint32_t> others;
    const auto ids = keys_of<uint32_t>(kind, id_bits, count, &others);
    const auto inputs = copies_of(ids, copies, adjacent);
    auto device_inputs = to_device(inputs);
    DeviceBuffer<Put> results(inputs.size()), again(inputs.size());
    DeviceBuffer<uint32_t> words(Set::kWords);
    shared_put_kernel<Set><<<1, 256, Set::kWords * 4>>>(device_inputs.data(), uint32_t(inputs.size()), results.data(),
                                                        again.data(), words.data());
    check_launch("shared_put_kernel");
    const auto first = to_host(results.data(), inputs.size()), second = to_host(again.data(), inputs.size());
    const auto in = check_outcome(run, inputs, first);
    for (size_t i = 0; i < inputs.size(); i++)
        run.expect(second[i] == (in.count(inputs[i]) ? Put::Seen : Put::Full), "id %x again", inputs[i]);
    run.expect(double(ids.size() - in.size()) <= most_full * double(ids.size()), "%zu of %zu ids found no room",
               ids.size() - in.size(), ids.size());
}

template <class Set>
static void test_shared_shapes(const std::string &name, uint32_t id_bits, uint32_t slots, const double (&most_full)[3])
{
    for (const char *kind : {"random", "sequential", "strided"})
        for (int i = 0; i < 5; i++) {
            const uint32_t percent[5] = {30, 60, 80, 100, 150};
            const uint32_t count = slots * percent[i] / 100;
            if (std::ldexp(1.0, int(id_bits)) < count || (small && (kind[0] != 'r' || i == 0 || i == 3)))
                continue;
            for (bool adjacent : {false, true})
                test_shared<Set>(name, id_bits, kind, count, 5, i < 3 ? most_full[i] : 1, adjacent);
        }
}

static void test_tables()
{
    const uint32_t b = small ? 4 : 6; /* log2 of the number of front buckets */
    /* As many keys as the slots can tell apart: b + 7, b + 15, ... bits, one or two less where the back yard is smaller. */
    test_iceberg_shapes<Iceberg<uint32_t, uint8_t, true, 32>, 1>("compact 32 x 8", b + 6, b, b);
    test_iceberg_shapes<Iceberg<uint32_t, uint8_t, true, 64>, 2>("compact 64 x 8", b + 6, b - 1, b);
    test_iceberg_shapes<Iceberg<uint32_t, uint16_t, true, 32>, 1>("compact 32 x 16", b + 12, b, b - 2);
    test_iceberg_shapes<Iceberg<uint32_t, uint16_t, true, 32>, 2>("compact 32 x 16", b + 12, b, b - 2);
    test_iceberg_shapes<Iceberg<uint32_t, uint16_t, true, 32>, 4>("compact 32 x 16", b + 12, b, b - 2);
    test_iceberg_shapes<Iceberg<uint64_t, uint16_t, true, 16>, 1>("compact 16 x 16", b + 13, b, b - 1);
    test_iceberg_shapes<Iceberg<uint32_t, uint32_t, true, 32>, 8>("compact 32 x 32", 32, b, b - 2);
    test_iceberg_shapes<Iceberg<uint64_t, uint32_t, true, 16>, 2>("compact 16 x 32", b + 28, b, b - 2);
    test_iceberg_shapes<Iceberg<uint64_t, uint64_t, true, 16>, 4>("compact 16 x 64", 64, b, 2);
    test_iceberg_shapes<Iceberg<uint64_t, uint64_t, true, 32>, 8>("compact 32 x 64", 48, b, b - 2);
    test_iceberg_shapes<Iceberg<uint32_t, uint32_t, false, 32>, 4>("uncompact 32 x 32", 31, b, b - 2);
    test_iceberg_shapes<Iceberg<uint64_t, uint64_t, false, 32>, 8>("uncompact 32 x 64", 63, b, b - 2);
    test_iceberg_shapes<Iceberg<uint64_t, uint64_t, false, 16>, 2>("uncompact 16 x 64", 48, b, b - 2);

    if (!small) {
        test_iceberg<Iceberg<uint32_t, uint16_t, true, 32>, 2>("compact 32 x 16", 24, 11, 10, "random", 0.93, 9, false);
        test_iceberg<Iceberg<uint32_t, uint16_t, true, 32>, 1>("compact 32 x 16", 24, 11, 10, "random", 0.93, 9, true);
        test_iceberg<Iceberg<uint64_t, uint64_t, true, 32>, 8>("compact 32 x 64", 64, 11, 10, "random", 0.93, 9, true);
    }

    test_cuckoo_shapes<Cuckoo<uint32_t, uint8_t, true, 32>, 2>("cuckoo, compact 32 x 8", b + 6, b);
    test_cuckoo_shapes<Cuckoo<uint32_t, uint16_t, true, 32>, 1>("cuckoo, compact 32 x 16", b + 14, b);
    test_cuckoo_shapes<Cuckoo<uint32_t, uint16_t, true, 16>, 2>("cuckoo, compact 16 x 16", b + 14, b);
    test_cuckoo_shapes<Cuckoo<uint32_t, uint32_t, true, 16>, 4>("cuckoo, compact 16 x 32", 32, b);
    test_cuckoo_shapes<Cuckoo<uint64_t, uint32_t, true, 32>, 8>("cuckoo, compact 32 x 32", b + 30, b);
    test_cuckoo_shapes<Cuckoo<uint64_t, uint64_t, true, 16>, 2>("cuckoo, compact 16 x 64", 64, b);
    test_cuckoo_shapes<Cuckoo<uint32_t, uint32_t, false, 32>, 4>("cuckoo, uncompact 32 x 32", 30, b);
    test_cuckoo_shapes<Cuckoo<uint64_t, uint64_t, false, 16>, 4>("cuckoo, uncompact 16 x 64", 62, b);
    test_cuckoo_shapes<Cuckoo<uint64_t, uint64_t, true, 8, 32>, 1>("map, 8 x 64", b + 30, b);
    test_cuckoo_shapes<Cuckoo<uint64_t, uint64_t, true, 8, 32>, 4>("map, 8 x 64", b + 30, b);
    test_cuckoo_shapes<Cuckoo<uint64_t, uint64_t, true, 16, 32>, 2>("map, 16 x 64", b + 30, b);
    test_cuckoo_shapes<Cuckoo<uint64_t, uint64_t, true, 4, 32>, 1>("map, 4 x 64", b + 30, b + 1);

    /* Random ids find no room as Poisson says, for 2,048 slots 0.2, 2.4 and 8 % of the different ids (with some spare). */
    test_shared_shapes<SharedBuckets<8>>("shared buckets", 23, 2048, {0.01, 0.05, 0.12});
    test_shared_shapes<SharedBuckets<3>>("shared buckets", 18, 64, {1, 1, 1});
    test_shared_shapes<SharedIceberg<8, 5>>("shared iceberg", 23, 2048, {0, 0, 0.005});
}

/* Parameters that cannot be are turned away. */
template <class Work>
static void expect_refused(const char *name, Work work)
{
    TestRun run(name);
    bool refused = false;
    try {
        work();
    } catch (const Failure &failure) {
        refused = failure.status == Status::BadRequest;
    }
    run.expect(refused, "not refused");
}

int main(int argc, char **argv)
{
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
        printf("no device\n");
        return 2;
    }
    const std::string mode = argc > 1 ? argv[1] : "";
    try {
        if (mode == "--bench") {
            hash_bench(argc > 2 ? argv[2] : "", properties.multiProcessorCount);
            return 0;
        }
        small = mode == "--small";
        test_tables();
        expect_refused("keys too wide for the slots",
                       [] { IcebergTable<Iceberg<uint32_t, uint16_t, true, 32>> table(25, 10, 8, 1); });
        expect_refused("more buckets than keys", [] { CuckooTable<Cuckoo<uint32_t, uint32_t, true, 16>> table(8, 9); });
    } catch (const Failure &failure) {
        printf("failed: %s\n", failure.text);
        return 1;
    }
    printf("%d passed, %d failed\n", runs - failures, failures);
    return failures != 0;
}
