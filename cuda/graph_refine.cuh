/*
 * graph_refine.cuh: the last step of a graph search on coarse keys: the best of its list again, by the rows themselves.
 */
#pragma once

#include "job.h"
#include "launch.h"
#include "warp_list.cuh"

namespace vecgpu::cuda {

/* A warp a query. `list` has `length` hits a query, *counts of them found; k of them become the answer. */
template <class Kernel, int kRegisters>
__global__ void __launch_bounds__(128)
    refine_kernel(const Rows rows, const uint4 *prepared, uint32_t count, const Hit *list, const uint32_t *found,
                  uint32_t length, uint32_t k, Hit *hits, uint32_t *counts)
{
    extern __shared__ __align__(16) uint4 queries[];
    const int lane = threadIdx.x & 31;
    const uint32_t q = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    if (q >= count)
        return;
    const uint32_t all = found[q];
    if (all > length) { /* kOverflow */
        if (lane == 0)
            counts[q] = all;
        return;
    }
    uint4 *query = queries + threadIdx.x / 32 * Kernel::kVectors * rows.pieces;
    const uint4 *mine = prepared + static_cast<size_t>(q) * query_pieces(Kernel::storage, rows.pieces);
    QueryHead head;
    uint4 first_piece = __ldg(mine);
    memcpy(&head, &first_piece, sizeof head);
    for (uint32_t i = lane; i < Kernel::kVectors * rows.pieces; i += 32)
        query[i] = __ldg(mine + Kernel::query_offset(rows.pieces) + i);
    __syncwarp();
    WarpList<kRegisters> best;
    best.clear();
    list += static_cast<size_t>(q) * length;
    for (uint32_t first = 0; first < all; first += 32) {
        const int n = static_cast<int>(min(32u, all - first));
        const uint32_t slot = list[first + min(lane, n - 1)].slot;
        const float key = Kernel::keys(rows, query, head, slot, n);
        best.merge(lane < n ? word_of(key, slot) : kNoWord);
    }
    hits += static_cast<size_t>(q) * k;
#pragma unroll
    for (int r = 0; r < kRegisters; r++) {
        const uint32_t at = r * 32 + lane;
        if (at < k && best.v[r] != kNoWord)
            hits[at] = {slot_of_word(best.v[r]), key_of_word(best.v[r])};
    }
    if (lane == 0)
        counts[q] = min(all, k);
}

struct RefineLauncher {
    const Machine &machine;
    const Job &job;
    const Job &walk;
    cudaStream_t stream;

    template <class Kernel>
    void run()
    {
        if (walk.k <= 32)
            go<Kernel, 1>();
        else if (walk.k <= 128)
            go<Kernel, 4>();
        else
            go<Kernel, 16>();
    }

    template <class Kernel, int kRegisters>
    void go()
    {
        const size_t bytes = Kernel::kVectors * job.rows.pieces * sizeof(uint4);
        uint32_t warps = job.count <= static_cast<uint32_t>(machine.sms) ? 1 : 4;
        while (warps > 1 && warps * bytes > machine.shared_per_block)
            warps /= 2;
        allow_shared<refine_kernel<Kernel, kRegisters>>(warps * bytes, machine.ordinal);
        refine_kernel<Kernel, kRegisters><<<(job.count + warps - 1) / warps, warps * 32, warps * bytes, stream>>>(
            job.rows, job.prepared, job.count, walk.hits, walk.counts, walk.k, job.k, job.hits, job.counts);
        check_launch("refine");
    }
};

} // namespace vecgpu::cuda
