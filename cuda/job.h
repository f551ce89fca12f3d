/*
 * job.h: what a search is, between the host code and the kernels.
 */
#pragma once

#include "rows.cuh"

#include "protocol/message.h"

#include <cuda_runtime.h>

namespace vecgpu::cuda {

constexpr uint32_t kOverflow = UINT32_MAX; /* in place of a count: the fast form gave up, ask the general one */
constexpr uint32_t kEntries = 32;          /* nodes that a graph search starts from */
constexpr uint32_t kPivots = 1024;         /* nodes that these are chosen from */
constexpr uint32_t kScanCandidates = 8192; /* rows that the scan of one query may keep; at least kMaxHits */
constexpr uint32_t kScanMinima = 4096;     /* words that groups of warps post for its bound */
static_assert(kScanCandidates >= kMaxHits);

/* So many floats travel with the launch of a kernel, which spares a copy or reads over the bus. */
constexpr uint32_t kInlineFloats = 896;
struct InlineQueries {
    float values[kInlineFloats];
};

/* Largest ef of the graph kernels: what fits into the registers of a warp. Wider searches are exact. */
constexpr uint32_t kMaxGraphEf = 512;

/*
 * Nodes that a graph search expands in its rounds, in every form: kFirstParents, then twice as many every 2^kRampShift
 * rounds, up to most_parents(). While the list still moves towards the query, wide rounds expand what falls out of it
 * again; later all of it is expanded anyway, and few rounds are what counts.
 */
constexpr uint32_t kFirstParents = 2;
constexpr uint32_t kRampShift = 0;
constexpr uint32_t most_parents(uint32_t ef)
{
    return ef <= 256 ? 32 : 64;
}

/* Copies of the pivots for scanning them, see entry.h. Pivots p with the same p / (kPivots / kEntries) are a class. */
struct PivotView {
    const uint4 *columns; /* of 16 dimensions: pieces x kPivots */
    const float2 *side;   /* key = y + x times dot product */
    const uint32_t *slots;
    const float *mean; /* that the columns are without */
    uint32_t pieces;
    Metric metric;
};

/* One call of search(). Pointers are device memory, or pinned memory that the device sees. */
struct Job {
    Rows rows;
    uint32_t nodes;       /* rows 0 .. nodes-1 are searched */
    const uint32_t *bits; /* bit s: row s may be returned; null: all */
    uint32_t k;           /* 1 .. kMaxHits */
    uint32_t ef;
    uint32_t count;        /* queries */
    const uint4 *prepared; /* count x query_pieces() */
    const uint32_t *links; /* graph: nodes x degree, kNone where there is no link */
    uint32_t degree;
    const float *raw;        /* count x dimensions: the queries as they came */
    const float *inline_raw; /* the same in host memory if they are at most kInlineFloats floats, else null */
    PivotView pivots;        /* graph */
    const uint32_t *entries; /* graph: count x kEntries slots; null: the kernel looks for them itself */
    const uint32_t *turns;   /* graph: the queries in the order in which they are begun; null: as they came */
    uint32_t first_parents;  /* graph: nodes expanded in a round, see kFirstParents; the answer depends on them */
    uint32_t parents;
    uint32_t ramp_shift;
    Hit *hits;        /* count x k */
    uint32_t *counts; /* count */
};

/* Workspace of one stream for selection over one row of keys; see flat_scan.cuh. */
struct ScanWorkspace {
    uint32_t *minima; /* kScanMinima, kNanOrder between launches */
    Word *candidates; /* kScanCandidates */
    Word *ends; /* two, zero between launches: blocks that have ended << 32 | candidates; blocks that have posted */
};

constexpr uint32_t kRadixBins = 2048;

/* State of a radix selection over (key, slot) words, in device memory. */
struct RadixState {
    Word bound;         /* so far: the k-th smallest word begins with these digits */
    uint32_t remaining; /* rank of the k-th word among those that begin so */
    uint32_t wanted;    /* min(k, words) */
    uint32_t done;      /* bound is final: words <= it are the answer */
    uint32_t finished;  /* blocks of the running kernel */
    uint32_t collected;
    uint32_t words; /* that may be returned */
    uint32_t bins[kRadixBins];
};

/* Properties of the device that launches depend on. */
struct Machine {
    int ordinal;
    int sms;
    int major;
    size_t shared_per_block; /* opt-in limit */
};

/*
 * One query by one pass over all rows, k <= kScanCandidates / 8. counts[query] is kOverflow if the keys were too alike.
 * The query is prepared, or at most kInlineFloats floats at `raw`, in host memory. False, and nothing done, if a block
 * has too little shared memory.
 */
template <Storage kStorage>
bool launch_scan(const Machine &machine, const Job &job, uint32_t query, const float *raw,
                 const ScanWorkspace &workspace, cudaStream_t stream);

/* Order-preserving keys of all rows for one query, for the radix selection; what may not be returned is kNanOrder. */
template <Storage kStorage>
void launch_keys(const Machine &machine, const Job &job, uint32_t query, uint32_t *orders, cudaStream_t stream);

/* Graph search of all queries of a job, one warp each. *ticket is zero. */
template <Storage kStorage>
void launch_graph_warp(const Machine &machine, const Job &job, uint32_t *ticket, cudaStream_t stream);

/*
 * What works on one query: a cluster of 1, 2, 4 or 8 blocks (more than 1 only on a chip with clusters) of 128, 256 or
 * 512 threads (several only with 512).
 */
struct BlockShape {
    uint32_t blocks, threads;
};

/*
 * The same in blocks, from the raw queries. `walk` is the job with the rows that are walked on, which are of kStorage;
 * if those are int8, its k is how many hits are computed again from the job's rows, which are of `storage`. False, and
 * nothing done, if a block has too little shared memory.
 */
template <Storage kStorage>
bool launch_graph_block(const Machine &machine, const Job &job, const Job &walk, Storage storage, BlockShape shape,
                        cudaStream_t stream);

/*
 * The hits of `walk`, whose keys are coarse, computed again by the fine kernel: the best of them are those of `job`.
 */
template <Storage kStorage>
void launch_refine(const Machine &machine, const Job &job, const Job &walk, cudaStream_t stream);

/* float32 queries (count x dimensions) to what the kernels read, see rows.cuh. */
void launch_prepare(Storage storage, const float *queries, uint32_t dimensions, uint32_t pieces, uint32_t count,
                    uint4 *prepared, cudaStream_t stream);

/*
 * The same for a few queries in host memory, at most kInlineFloats floats; they are copied to `raw`, in device memory,
 * too.
 */
void launch_prepare_inline(Storage storage, const float *host, float *raw, uint32_t dimensions, uint32_t pieces,
                           uint32_t count, uint4 *prepared, cudaStream_t stream);

/* The k smallest (order, index) of `count` orders to hits and *found; any k <= kMaxHits. */
void launch_radix_select(const Machine &machine, const uint32_t *orders, uint32_t count, uint32_t k, RadixState *state,
                         Word *candidates, Hit *hits, uint32_t *found, cudaStream_t stream);

} // namespace vecgpu::cuda
