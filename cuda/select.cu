/* select.cu: see select.h. */
#include "select.h"

#include "launch.h"
#include "long_select.cuh"
#include "threshold_select.cuh"
#include "warp_list.cuh"

#include <algorithm>

namespace vecgpu::cuda {

namespace {

/* Words of the parts of a row, at most kScanCandidates, to its answer. */
__global__ void __launch_bounds__(512)
    merge_parts_kernel(const Word *words, uint32_t count, uint32_t k, SelectOutput output)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    Word *list = reinterpret_cast<Word *>(dynamic);
    __shared__ BlockBoundStorage storage;
    __shared__ BlockBins<512> bins;
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
    block_emit_sorted<512, kScanCandidates / 512>(list, real, k, storage, bins,
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

    template <int kThreads, int kValues, int kGroup, int kCapacity, bool kAhead, int kBlocks>
    void launch_threshold()
    {
        constexpr auto kernel = threshold_select_kernel<kThreads, kValues, kGroup, kCapacity, kAhead, kBlocks>;
        const size_t shared = kCapacity * sizeof(Word) + (kAhead ? kThreads * kValues * sizeof(float) : 0);
        allow_shared<kernel>(shared, machine.ordinal);
        const uint32_t jobs = a.rows * parts;
        uint32_t blocks = jobs;
        if (kAhead) {
            constexpr size_t fixed = sizeof(BlockBins<kThreads>) + sizeof(BlockBoundStorage) + 1024;
            blocks = std::min<uint32_t>(kBlocks, static_cast<uint32_t>(machine.shared_per_block / (shared + fixed)));
            blocks = std::min(jobs, machine.sms * std::max(blocks, 1u));
        }
        kernel<<<blocks, kThreads, shared, stream>>>(a.values, a.columns, parts, jobs, a.k, output);
        check_launch("threshold_select");
    }

    template <int kThreads, int kValues, int kGroup, int kCapacity, int kBlocks = 1024 / kThreads>
    void threshold()
    {
        if (a.columns % 4 == 0 && reinterpret_cast<uintptr_t>(a.values) % 16 == 0)
            launch_threshold<kThreads, kValues, kGroup, kCapacity, true, kBlocks>();
        else
            launch_threshold<kThreads, kValues, kGroup, kCapacity, false, kBlocks>();
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
    /* A list must take a whole chunk of a row that has just one, else 2 k. */
    if (length <= 1024 || (length <= 2048 && k <= 128)) {
        if (k <= 32)
            call.threshold<64, 16, 16, 1024>();
        else if (k <= 128)
            call.threshold<128, 8, 2, 1024>();
        else
            call.threshold<128, 8, 1, 1024>();
    } else if (length <= 2048) {
        call.threshold<256, 8, 1, 2048>();
    } else if (k <= 32) {
        call.threshold<256, 32, 32, 2048>();
    } else if (k <= 128) {
        call.threshold<256, 32, 16, 2048>();
    } else if (k <= 256) {
        call.threshold<256, 32, 8, 2048>();
    } else {
        call.launch_threshold<256, 32, 4, 4096, false, 4>(); /* not bound by memory: a fourth block is worth more */
    }
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

/* From so many columns on, all SMs work on one row. */
constexpr uint32_t kLongColumns = 1 << 16;

void launch_long(const Machine &machine, const SelectArguments &a, SelectWorkspace *workspace, cudaStream_t stream)
{
    constexpr uint32_t kCounters = sizeof(LongCounters) / sizeof(uint32_t);
    workspace->words.reserve(kScanCandidates);
    workspace->found.reserve(kLongMinima + kCounters);
    const size_t shared = kScanCandidates * sizeof(Word);
    allow_shared<long_select_kernel>(shared, machine.ordinal);
    const float *values = a.values;
    uint32_t columns = a.columns, k = a.k, *minima = workspace->found.data();
    Word *candidates = workspace->words.data();
    LongCounters *counters = reinterpret_cast<LongCounters *>(minima + kLongMinima);
    SelectOutput output = {a.keys, a.indices, nullptr};
    void *arguments[] = {&values, &columns, &k, &minima, &candidates, &counters, &output};
    check(cudaLaunchCooperativeKernel(long_select_kernel, dim3(machine.sms), dim3(kLongThreads), arguments, shared,
                                      stream),
          "long_select");
}

} // namespace

SelectWay select_way(uint32_t k)
{
    return k > kMaxSelect ? SelectWay::Radix : SelectWay::Threshold;
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
    if (way == SelectWay::Threshold && a.rows == 1 && a.columns >= kLongColumns && a.columns < 1u << 31 &&
        machine.sms * (kLongThreads / 32) <= static_cast<int>(kLongMinima)) {
        launch_long(machine, a, workspace, stream);
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
