/* select.cu: see select.h. */
#include "select.h"

#include "block_select.cuh"
#include "launch.h"
#include "warp_list.cuh"

#include <algorithm>

namespace vecgpu::cuda {

namespace {

/* Where the answer of one row, or of a part of it, goes: words when there are parts to be merged. */
struct SelectOutput {
    float *keys;
    uint32_t *indices;
    Word *words;

    __device__ __forceinline__ void put(size_t at, Word word) const
    {
        if (words) {
            words[at] = word;
        } else {
            keys[at] = word == kNoWord ? INFINITY : key_of_word(word);
            indices[at] = slot_of_word(word);
        }
    }
};

__device__ __forceinline__ float nan_value()
{
    return __uint_as_float(0x7fffffff);
}

/* Four consecutive values; NaN beyond `end`. */
__device__ __forceinline__ float4 load_values(const float *row, uint32_t at, uint32_t end, bool aligned)
{
    if (aligned && at + 4 <= end)
        return __ldcs(reinterpret_cast<const float4 *>(row + at));
    float4 v;
    v.x = at < end ? row[at] : nan_value();
    v.y = at + 1 < end ? row[at + 1] : nan_value();
    v.z = at + 2 < end ? row[at + 2] : nan_value();
    v.w = at + 3 < end ? row[at + 3] : nan_value();
    return v;
}

/* Part `part` of `parts` of a row: columns first .. end - 1, first a multiple of 4. */
__device__ __forceinline__ void part_of(uint32_t columns, uint32_t parts, uint32_t part, uint32_t &first, uint32_t &end)
{
    const uint32_t each = ((columns + parts - 1) / parts + 3) / 4 * 4;
    first = min(columns, part * each);
    end = min(columns, first + each);
}

/*
 * kThreads x kValues values at a time in registers. The bound starts as the k-th smallest minimum of groups of kGroup
 * values of the first stretch. Values within it are collected; when many are, all but the k smallest go and the bound
 * becomes exact and strict: what comes later with an equal value has a greater column.
 */
template <int kThreads, int kValues, int kGroup, int kCapacity>
__global__ void __launch_bounds__(kThreads, 1024 / kThreads)
    threshold_select_kernel(const float *values, uint32_t columns, uint32_t parts, uint32_t k, SelectOutput output)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic); /* kCapacity */
    __shared__ BlockBoundStorage storage;
    __shared__ uint32_t counter, size, overflow;
    static_assert(kCapacity % kThreads == 0 && kCapacity >= 2048 - 2048 % kThreads);
    constexpr int kItems = kCapacity / kThreads;
    const int lane = threadIdx.x & 31;
    const uint32_t row = blockIdx.x / parts;
    uint32_t first, end;
    part_of(columns, parts, blockIdx.x % parts, first, end);
    const float *data = values + static_cast<size_t>(row) * columns;
    const bool aligned = columns % 4 == 0;
    if (threadIdx.x == 0) {
        size = 0;
        overflow = 0;
    }
    float bound = INFINITY;
    auto prune = [&](uint32_t count, bool exact) {
        const uint32_t kept = block_prune<kThreads, kItems>(list, count, k, exact ? 0 : k / 16 + 1, storage, counter);
        Word greatest = 0;
        for (uint32_t i = threadIdx.x; i < kept; i += kThreads)
            greatest = max(greatest, list[i]);
#pragma unroll
        for (int offset = 16; offset; offset >>= 1)
            greatest = max(greatest, __shfl_xor_sync(kFullWarp, greatest, offset));
        if (threadIdx.x == 0)
            storage.high = 0;
        __syncthreads();
        if (lane == 0)
            atomicMax(&storage.high, greatest);
        __syncthreads();
        if (kept >= k)
            bound = key_of_order(static_cast<uint32_t>(storage.high >> 32) - (kept == k));
        if (threadIdx.x == 0)
            size = kept;
        __syncthreads();
    };
    bool begun = false;
    for (uint32_t base = first; base < end; base += kThreads * kValues) {
        float v[kValues];
#pragma unroll
        for (int j = 0; j < kValues / 4; j++) {
            const float4 x = load_values(data, base + (j * kThreads + threadIdx.x) * 4, end, aligned);
            v[4 * j] = x.x, v[4 * j + 1] = x.y, v[4 * j + 2] = x.z, v[4 * j + 3] = x.w;
        }
        if (!begun) {
            begun = true;
            uint32_t minima[kValues / kGroup];
#pragma unroll
            for (int g = 0; g < kValues / kGroup; g++) {
                float least = v[g * kGroup];
#pragma unroll
                for (int i = 1; i < kGroup; i++)
                    least = fminf(least, v[g * kGroup + i]); /* passes over NaN */
                minima[g] = order_of(least);
            }
            const uint32_t order = block_bound<kValues / kGroup>(minima, k, max(k / 8, 3u), storage);
            bound = order >= kInfOrder ? INFINITY : key_of_order(order);
        }
        uint32_t mine = 0;
#pragma unroll
        for (int i = 0; i < kValues; i++)
            mine += v[i] <= bound;
        __syncthreads();
        const uint32_t before = size;
        __syncthreads();
        if (__any_sync(kFullWarp, mine > 0)) {
            uint32_t sum = mine;
#pragma unroll
            for (int offset = 1; offset < 32; offset <<= 1) {
                const uint32_t other = __shfl_up_sync(kFullWarp, sum, offset);
                if (lane >= offset)
                    sum += other;
            }
            uint32_t at = 0;
            if (lane == 31)
                at = atomicAdd(&size, sum);
            at = __shfl_sync(kFullWarp, at, 31);
            const uint32_t total = __shfl_sync(kFullWarp, sum, 31);
            if (at + total > kCapacity) {
                if (lane == 0)
                    overflow = 1;
            } else if (mine) {
                uint32_t to = at + sum - mine;
#pragma unroll
                for (int i = 0; i < kValues; i++)
                    if (v[i] <= bound)
                        list[to++] = word_of(v[i], base + (i / 4 * kThreads + threadIdx.x) * 4 + i % 4);
            }
        }
        __syncthreads();
        if (overflow) {
            /*
             * Too many at once: again from memory, kThreads columns at a time in their order, with exact prunes in
             * between.
             */
            __syncthreads();
            if (threadIdx.x == 0) {
                size = before;
                overflow = 0;
            }
            __syncthreads();
#pragma unroll 1
            for (uint32_t at = base; at < min(end, base + kThreads * kValues); at += kThreads) {
                const uint32_t held = size;
                __syncthreads();
                if (held + kThreads > kCapacity)
                    prune(held, true);
                const uint32_t column = at + threadIdx.x;
                const float x = column < end ? data[column] : nan_value();
                const uint32_t hits = __ballot_sync(kFullWarp, x <= bound);
                if (hits) {
                    uint32_t to = 0;
                    if (lane == 0)
                        to = atomicAdd(&size, __popc(hits));
                    to = __shfl_sync(kFullWarp, to, 0) + __popc(hits & ((1u << lane) - 1));
                    if (x <= bound)
                        list[to] = word_of(x, column);
                }
                __syncthreads();
            }
        }
        const uint32_t held = size;
        if (base + kThreads * kValues < end && held > min(static_cast<uint32_t>(kCapacity) / 2, 2 * k + 64))
            prune(held, false);
    }
    __syncthreads();
    const uint32_t count = size;
    __syncthreads();
    const size_t to = static_cast<size_t>(blockIdx.x) * k;
    block_emit_sorted<kThreads, kItems>(list, count, k, storage, counter,
                                        [&](uint32_t rank, Word word) { output.put(to + rank, word); });
    for (uint32_t i = min(count, k) + threadIdx.x; i < k; i += kThreads)
        output.put(to + i, kNoWord);
}

/* Words of the parts of a row, at most kScanCandidates, to its answer. */
__global__ void __launch_bounds__(512)
    merge_parts_kernel(const Word *words, uint32_t count, uint32_t k, SelectOutput output)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic);
    __shared__ BlockBoundStorage storage;
    __shared__ uint32_t counter;
    if (threadIdx.x == 0)
        counter = 0;
    __syncthreads();
    words += static_cast<size_t>(blockIdx.x) * count;
    for (uint32_t i = threadIdx.x; i < count; i += 512)
        if (words[i] != kNoWord)
            list[atomicAdd(&counter, 1u)] = words[i];
    __syncthreads();
    const uint32_t real = counter;
    __syncthreads();
    const size_t to = static_cast<size_t>(blockIdx.x) * k;
    block_emit_sorted<512, kScanCandidates / 512>(list, real, k, storage, counter,
                                                  [&](uint32_t rank, Word word) { output.put(to + rank, word); });
    for (uint32_t i = min(real, k) + threadIdx.x; i < k; i += 512)
        output.put(to + i, kNoWord);
}

/* WarpSelect: kRegisters x 32 places in the warp queue, kQueue in each thread's queue. */
template <int kRegisters, int kQueue>
__global__ void __launch_bounds__(128) warp_select_kernel(const float *values, uint32_t rows, uint32_t columns,
                                                          uint32_t parts, uint32_t k, SelectOutput output)
{
    const int lane = threadIdx.x & 31;
    const uint32_t job = blockIdx.x * 4 + threadIdx.x / 32;
    if (job >= rows * parts)
        return;
    const float *data = values + static_cast<size_t>(job / parts) * columns;
    uint32_t first, end;
    part_of(columns, parts, job % parts, first, end);
    WarpList<kRegisters> list;
    list.clear();
    Word queue[kQueue], worst = kNoWord;
#pragma unroll
    for (int i = 0; i < kQueue; i++)
        queue[i] = kNoWord;
    uint32_t held = 0;
    auto merge = [&] {
#pragma unroll 1
        for (int i = 0; i < kQueue; i++) {
            const Word fresh = queue[0];
#pragma unroll
            for (int j = 0; j + 1 < kQueue; j++)
                queue[j] = queue[j + 1];
            queue[kQueue - 1] = kNoWord;
            if (__any_sync(kFullWarp, fresh < worst)) {
                list.merge(fresh);
                worst = list.element(static_cast<int>(k) - 1);
            }
        }
        held = 0;
    };
    for (uint32_t base = first; base < end; base += 128) {
        const float4 x = load_values(data, base + lane * 4, end, columns % 4 == 0);
        float v[4] = {x.x, x.y, x.z, x.w};
        /* One call site of the merge: the loop is not unrolled. */
        if (!__any_sync(kFullWarp,
                        fminf(fminf(v[0], v[1]), fminf(v[2], v[3])) <= key_of_word(worst) || worst == kNoWord))
            continue;
#pragma unroll 1
        for (int i = 0; i < 4; i++) {
            const Word word = v[0] == v[0] ? word_of(v[0], base + lane * 4 + i) : kNoWord;
            v[0] = v[1], v[1] = v[2], v[2] = v[3];
            if (word < worst) {
#pragma unroll
                for (int j = kQueue - 1; j > 0; j--)
                    queue[j] = queue[j - 1];
                queue[0] = word;
                held++;
            }
            if (__any_sync(kFullWarp, held == kQueue))
                merge();
        }
    }
    merge();
#pragma unroll
    for (int r = 0; r < kRegisters; r++)
        if (r * 32 + lane < static_cast<int>(k))
            output.put(static_cast<size_t>(job) * k + r * 32 + lane, list.v[r]);
}

__global__ void __launch_bounds__(256) orders_kernel(const float *values, uint32_t count, uint32_t *orders)
{
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * 256 + threadIdx.x; i < count;
         i += static_cast<uint64_t>(gridDim.x) * 256)
        orders[i] = order_of(values[i]);
}

__global__ void __launch_bounds__(256)
    hits_kernel(const Hit *hits, const uint32_t *found, uint32_t k, float *keys, uint32_t *indices)
{
    for (uint32_t i = threadIdx.x; i < k; i += 256) {
        keys[i] = i < *found ? hits[i].key : INFINITY;
        indices[i] = i < *found ? hits[i].slot : kNone;
    }
}

struct Call {
    const Machine &machine;
    const SelectArguments &a;
    uint32_t parts;
    SelectOutput output;
    cudaStream_t stream;

    template <int kThreads, int kValues, int kGroup, int kCapacity>
    void threshold()
    {
        constexpr auto kernel = threshold_select_kernel<kThreads, kValues, kGroup, kCapacity>;
        allow_shared<kernel>(kCapacity * sizeof(Word), machine.ordinal);
        kernel<<<a.rows * parts, kThreads, kCapacity * sizeof(Word), stream>>>(a.values, a.columns, parts, a.k, output);
        check_launch("threshold_select");
    }

    template <int kRegisters, int kQueue>
    void warp()
    {
        warp_select_kernel<kRegisters, kQueue>
            <<<(a.rows * parts + 3) / 4, 128, 0, stream>>>(a.values, a.rows, a.columns, parts, a.k, output);
        check_launch("warp_select");
    }
};

void run_threshold(Call call)
{
    const uint32_t k = call.a.k, length = (call.a.columns + call.parts - 1) / call.parts;
    if (length <= 2048 && k <= 128) {
        k <= 32 ? call.threshold<64, 16, 16, 2048>() : call.threshold<128, 8, 2, 2048>();
        return;
    }
    if (k <= 32)
        call.threshold<256, 32, 32, 2048>();
    else if (k <= 128)
        call.threshold<256, 32, 16, 2048>();
    else if (k <= 256)
        call.threshold<256, 32, 8, 2048>();
    else
        call.threshold<256, 32, 4, 4096>();
}

void run_warp(Call call)
{
    const uint32_t k = call.a.k;
    if (k <= 32)
        call.warp<1, 2>();
    else if (k <= 128)
        call.warp<4, 3>();
    else if (k <= 256)
        call.warp<8, 4>();
    else
        call.warp<32, 8>();
}

} // namespace

SelectWay select_way(uint32_t rows, uint32_t columns, uint32_t k)
{
    return k > kMaxSelect || (rows == 1 && columns >= 1u << 18 && k > 64) ? SelectWay::Radix : SelectWay::Threshold;
}

void launch_select(const Machine &machine, SelectWay way, const SelectArguments &a, SelectWorkspace *workspace,
                   cudaStream_t stream)
{
    if (a.k < 1 || a.k > (way == SelectWay::Radix ? kMaxHits : kMaxSelect))
        fail(Status::BadRequest, "k of a selection out of range");
    if (way == SelectWay::Radix) {
        workspace->orders.reserve(a.columns);
        workspace->radix.reserve(1);
        workspace->words.reserve(kScanCandidates);
        workspace->hits.reserve(kMaxHits);
        workspace->found.reserve(1);
        for (uint32_t row = 0; row < a.rows; row++) {
            orders_kernel<<<machine.sms * 4, 256, 0, stream>>>(a.values + static_cast<size_t>(row) * a.columns,
                                                               a.columns, workspace->orders.data());
            check_launch("orders");
            launch_radix_select(machine, workspace->orders.data(), a.columns, a.k, workspace->radix.data(),
                                workspace->words.data(), workspace->hits.data(), workspace->found.data(), stream);
            hits_kernel<<<1, 256, 0, stream>>>(workspace->hits.data(), workspace->found.data(), a.k,
                                               a.keys + static_cast<size_t>(row) * a.k,
                                               a.indices + static_cast<size_t>(row) * a.k);
            check_launch("hits");
        }
        return;
    }
    /* Long rows in parts, until there is work for all SMs; the parts' words must fit into one merge. */
    const uint32_t least = way == SelectWay::Warp ? 4096 : 8192,
                   wanted = machine.sms * (way == SelectWay::Warp ? 16 : 4);
    uint32_t parts =
        std::min({std::max(1u, wanted / std::max(1u, a.rows)), std::max(1u, a.columns / least), kScanCandidates / a.k});
    SelectOutput output = {a.keys, a.indices, nullptr};
    if (parts > 1) {
        workspace->words.reserve(static_cast<size_t>(a.rows) * parts * a.k);
        output.words = workspace->words.data();
    }
    const Call call = {machine, a, parts, output, stream};
    way == SelectWay::Warp ? run_warp(call) : run_threshold(call);
    if (parts > 1) {
        allow_shared<merge_parts_kernel>(kScanCandidates * sizeof(Word), machine.ordinal);
        merge_parts_kernel<<<a.rows, 512, kScanCandidates * sizeof(Word), stream>>>(
            workspace->words.data(), parts * a.k, a.k, {a.keys, a.indices, nullptr});
        check_launch("merge_parts");
    }
}

} // namespace vecgpu::cuda
