/*
 * hash_bench.cu: figures of the hash tables, in billions of operations a second (G/s), best of three.
 *
 * global: tables of 2^27 slots (iceberg: and an eighth more in the back yard), uniform keys of 30 or 48 bits, at the same
 * share of occupied slots. "put": an empty table to that fill; "find-or-put": the same, but every second key is one that
 * came before; "hit", "miss": finds at that fill. Clearing and making the keys are not counted.
 * Each by tiles of several sizes. shared: visited sets, one a warp, clearing included.
 */
#include "hash_bench.h"
#include "hash_cuckoo.cuh"
#include "hash_iceberg.cuh"
#include "hash_shared.cuh"

#include <algorithm>
#include <cstdio>
#include <vector>

using namespace vecgpu;
using namespace vecgpu::cuda;

static __host__ __device__ __forceinline__ uint32_t mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    x *= 0xC2B2AE35u;
    return x ^ (x >> 16);
}

/* Keys number first, first + 1, ... of one order of all keys. With `repeats`, every second one is an earlier one. */
template <class Key>
__global__ void keys_kernel(Permutation<Key> order, uint64_t first, uint64_t count, bool repeats, Key *keys)
{
    const uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    uint64_t number = first + i;
    if (repeats)
        number = i % 2 ? mix(uint32_t(i)) % (i / 2 + 1) : i / 2;
    keys[i] = order.apply(Key(number));
}

template <class Key>
static void make_keys(uint32_t bits, uint64_t first, uint64_t count, bool repeats, Key *keys)
{
    keys_kernel<<<uint32_t((count + 255) / 256), 256>>>(Permutation<Key>::make(bits, 99), first, count, repeats, keys);
    check_launch("keys_kernel");
}

class Clock {
public:
    Clock()
    {
        check(cudaEventCreate(&begin_), "event");
        check(cudaEventCreate(&end_), "event");
    }
    ~Clock()
    {
        cudaEventDestroy(begin_);
        cudaEventDestroy(end_);
    }

    /* Billions a second: `count` in the best of three runs of `work`, each after a run of `prepare`. */
    template <class Prepare, class Work>
    double rate(uint64_t count, Prepare prepare, Work work)
    {
        float best = 1e30f;
        for (int i = 0; i < 3; i++) {
            prepare();
            check(cudaEventRecord(begin_), "event");
            work();
            check(cudaEventRecord(end_), "event");
            check(cudaEventSynchronize(end_), "bench");
            float ms;
            check(cudaEventElapsedTime(&ms, begin_, end_), "event");
            best = std::min(best, ms);
        }
        return double(count) / best / 1e6;
    }

private:
    cudaEvent_t begin_, end_;
};

static const std::vector<int> kFills = {50, 70, 80, 90, 95};
constexpr int kSlotsLog = 27;

static constexpr uint32_t log2_of(uint32_t x)
{
    return x == 1 ? 0 : 1 + log2_of(x / 2);
}

static void nothing() {}

template <class Table, int kLanes>
static void bench_iceberg(const char *name, uint32_t key_bits)
{
    using Key = typename Table::Key;
    const uint32_t front_bits = kSlotsLog - log2_of(Table::kFrontSlots);
    IcebergTable<Table> table(key_bits, front_bits, front_bits - 2, 1);
    const uint64_t most = table.slots() * uint64_t(kFills.back()) / 100;
    DeviceBuffer<Key> keys(2 * most);
    DeviceBuffer<Put> results(2 * most);
    Clock clock;
    for (int fill : kFills) {
        const uint64_t count = table.slots() * uint64_t(fill) / 100;
        const auto clear = [&] { table.clear(nullptr); };
        make_keys(key_bits, 0, 2 * count, true, keys.data());
        const double find_or_put = clock.rate(2 * count, clear, [&] {
            table.template run<TableOp::FindOrPut, kLanes>(keys.data(), 2 * count, results.data(), nullptr);
        });
        make_keys(key_bits, 0, 2 * count, false, keys.data());
        const double put = clock.rate(count, clear, [&] {
            table.template run<TableOp::Put, kLanes>(keys.data(), count, results.data(), nullptr);
        });
        const double hit = clock.rate(count, nothing, [&] {
            table.template run<TableOp::Find, kLanes>(keys.data(), count, results.data(), nullptr);
        });
        const double miss = clock.rate(count, nothing, [&] {
            table.template run<TableOp::Find, kLanes>(keys.data() + count, count, results.data(), nullptr);
        });
        printf("iceberg %-22s lanes %d | %4zu MB | fill %d %% | find-or-put %.2f | put %.2f | hit %.2f | miss %.2f\n",
               name, kLanes, table.slots() * sizeof(typename Table::Slot) >> 20, fill, find_or_put, put, hit, miss);
        fflush(stdout);
    }
}

template <class Table, int kLanes>
static void bench_cuckoo(const char *name, uint32_t key_bits)
{
    using Key = typename Table::Key;
    CuckooTable<Table> table(key_bits, kSlotsLog - log2_of(Table::kSlots));
    const uint64_t most = table.slots() * uint64_t(kFills.back()) / 100;
    DeviceBuffer<Key> keys(2 * most);
    DeviceBuffer<uint32_t> results(most);
    Clock clock;
    for (int fill : kFills) {
        const uint64_t count = table.slots() * uint64_t(fill) / 100;
        make_keys(key_bits, 0, 2 * count, false, keys.data());
        bool built = true;
        uint32_t builds = 0;
        /* Its clearing and the wait at the end are within. */
        const double put = clock.rate(count, nothing, [&] {
            built = built && table.template build<kLanes>(keys.data(), results.data(), count, 1, nullptr);
            builds = std::max(builds, table.builds());
        });
        const double hit = clock.rate(
            count, nothing, [&] { table.template find<kLanes>(keys.data(), count, results.data(), nullptr); });
        const double miss = clock.rate(
            count, nothing, [&] { table.template find<kLanes>(keys.data() + count, count, results.data(), nullptr); });
        printf("cuckoo %-23s lanes %d | %4zu MB | fill %d %% | build %.2f%s (%u tries) | hit %.2f | miss %.2f\n", name,
               kLanes, table.slots() * sizeof(typename Table::Slot) >> 20, fill, put, built ? "" : " FAILED", builds,
               hit, miss);
        fflush(stdout);
    }
}

template <class Table, int... kLanes>
static void bench_icebergs(const char *name, uint32_t key_bits)
{
    (bench_iceberg<Table, kLanes>(name, key_bits), ...);
}

template <class Table, int... kLanes>
static void bench_cuckoos(const char *name, uint32_t key_bits)
{
    (bench_cuckoo<Table, kLanes>(name, key_bits), ...);
}

/* Compact ones before their uncompact twins. */
static void bench_global()
{
    bench_icebergs<Iceberg<uint32_t, uint16_t, true, 32>, 1, 4>("32 x 16, compact", 30);
    bench_icebergs<Iceberg<uint32_t, uint32_t, false, 32>, 4, 8>("32 x 32, uncompact", 30);
    bench_icebergs<Iceberg<uint32_t, uint32_t, false, 16>, 4>("16 x 32, uncompact", 30);
    bench_icebergs<Iceberg<uint64_t, uint32_t, true, 32>, 8>("32 x 32, compact", 48);
    bench_icebergs<Iceberg<uint64_t, uint64_t, false, 32>, 8, 16>("32 x 64, uncompact", 48);
    bench_icebergs<Iceberg<uint64_t, uint32_t, true, 16>, 4>("16 x 32, compact", 48);
    bench_icebergs<Iceberg<uint64_t, uint64_t, false, 16>, 8>("16 x 64, uncompact", 48);
    bench_cuckoos<Cuckoo<uint32_t, uint16_t, true, 32>, 1, 4>("32 x 16, compact", 30);
    bench_cuckoos<Cuckoo<uint32_t, uint32_t, false, 32>, 8>("32 x 32, uncompact", 30);
    bench_cuckoos<Cuckoo<uint32_t, uint16_t, true, 16>, 1, 2>("16 x 16, compact", 30);
    bench_cuckoos<Cuckoo<uint32_t, uint32_t, false, 16>, 4>("16 x 32, uncompact", 30);
    bench_cuckoos<Cuckoo<uint64_t, uint32_t, true, 16>, 4>("16 x 32, compact", 48);
    bench_cuckoos<Cuckoo<uint64_t, uint64_t, false, 16>, 8>("16 x 64, uncompact", 48);
    bench_cuckoos<Cuckoo<uint64_t, uint64_t, true, 4, 32>, 1, 2>("4 x 64, map 48 to 32", 48);
    bench_cuckoos<Cuckoo<uint64_t, uint64_t, true, 8, 32>, 4>("8 x 64, map 48 to 32", 48);
    bench_cuckoos<Cuckoo<uint64_t, uint64_t, true, 16, 32>, 8>("16 x 64, map 48 to 32", 48);
}

/* --- Sets in shared memory --- */

/* Yardstick: 32 bits a slot, linear probing. */
template <int kLog>
struct LinearProbing {
    static constexpr uint32_t kWords = 1u << kLog;
    static __device__ __forceinline__ Put put(uint32_t *table, uint32_t id)
    {
        for (uint32_t at = mix(id);; at++) {
            const uint32_t got = atomicCAS(table + at % kWords, 0u, id + 1);
            if (got == 0 || got == id + 1)
                return got ? Put::Seen : Put::New;
        }
    }
};

struct NoSet {
    static constexpr uint32_t kWords = 4;
    static __device__ __forceinline__ Put put(uint32_t *, uint32_t id) { return Put(id & 1); }
};

/* A set a warp; 32 new ids, then 32 that were put earlier. */
template <class Set>
__global__ void __launch_bounds__(128) shared_kernel(uint32_t queries, uint32_t distinct, unsigned long long *totals)
{
    extern __shared__ uint4 memory[];
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    uint32_t *table = reinterpret_cast<uint32_t *>(memory) + warp * Set::kWords;
    uint32_t put = 0, full = 0;
    for (uint32_t q = blockIdx.x * 4 + warp; q < queries; q += gridDim.x * 4) {
        for (uint32_t i = lane; i < Set::kWords / 4; i += 32)
            reinterpret_cast<uint4 *>(table)[i] = make_uint4(0, 0, 0, 0);
        __syncwarp();
        for (uint32_t begin = 0; begin < distinct; begin += 32) {
            Put outcome = Set::put(table, mix(q * 8192u + begin + lane) & 0xfffffu);
            put += outcome == Put::New;
            full += outcome == Put::Full;
            __syncwarp();
            const uint32_t earlier = __umulhi(mix(begin * 77u + lane + q), begin + 32);
            outcome = Set::put(table, mix(q * 8192u + earlier) & 0xfffffu);
            put += outcome == Put::New;
            full += outcome == Put::Full;
            __syncwarp();
        }
    }
    put = __reduce_add_sync(~0u, put);
    full = __reduce_add_sync(~0u, full);
    if (lane == 0) {
        atomicAdd(totals, put);
        atomicAdd(totals + 1, full);
    }
}

template <class Set>
static void bench_shared_set(const char *name, int processors, uint32_t slots)
{
    for (uint32_t fill : {30, 60, 80}) {
        const uint32_t queries = 200000, distinct = slots * fill / 100 / 32 * 32;
        const size_t bytes = Set::kWords * 16;
        check(cudaFuncSetAttribute(shared_kernel<Set>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), name);
        check(cudaFuncSetAttribute(shared_kernel<Set>, cudaFuncAttributePreferredSharedMemoryCarveout, 100), name);
        int blocks;
        check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, shared_kernel<Set>, 128, bytes), name);
        blocks = std::min(blocks, 9); /* 36 warps, as the search has */
        DeviceBuffer<unsigned long long> totals(2);
        Clock clock;
        const double rate = clock.rate(
            2ull * distinct * queries, [&] { check(cudaMemset(totals.data(), 0, 16), name); },
            [&] {
                shared_kernel<Set><<<processors * blocks, 128, bytes>>>(queries, distinct, totals.data());
                check_launch("shared_kernel");
            });
        unsigned long long host[2];
        check(cudaMemcpy(host, totals.data(), 16, cudaMemcpyDeviceToHost), name);
        printf("shared %-24s %u slots, %5u bytes, %2d warps an SM | fill %u %% | %.1f G/s | full %.2f %% | %.0f kept\n",
               name, slots, Set::kWords * 4, blocks * 4, fill, rate,
               100.0 * double(host[1]) / (2.0 * distinct * queries), double(host[0]) / queries);
        fflush(stdout);
    }
}

template <int kLog>
static void bench_shared_slots(int processors)
{
    bench_shared_set<NoSet>("(the ids alone)", processors, 1u << kLog);
    bench_shared_set<LinearProbing<kLog>>("linear probing, 32 bits", processors, 1u << kLog);
    bench_shared_set<SharedBuckets<kLog - 3>>("SharedBuckets, 8 x 16", processors, 1u << kLog);
    bench_shared_set<SharedIceberg<kLog - 3, kLog - 6>>("SharedIceberg", processors, 1u << kLog);
}

void hash_bench(const std::string &part, int processors)
{
    if (part.empty() || part == "shared") {
        bench_shared_slots<11>(processors);
        bench_shared_slots<12>(processors);
    }
    if (part.empty() || part == "global")
        bench_global();
}
