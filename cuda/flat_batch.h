/*
 * flat_batch.h: exact search of many queries on the tensor cores (sm_90).
 *
 * Rows are kept a second time, in 16 bits, as images of shared memory. A pass multiplies them with the queries; a row
 * whose score reaches the query's threshold goes to the query's list. The threshold is the k-th best score so far less
 * twice the proven bound of a score's error, so the list always holds the true k nearest; at the end all that is left
 * of it is computed again from the rows with the keys of rows.cuh. So the answer is the one that the scan of one query
 * gives, to the last bit.
 *
 * score = q.x - h: h = |x|^2 / 2 for L2, 0 for inner product and cosine (both sides normalised there).
 */
#pragma once

#include "buffer.h"
#include "job.h"

namespace vecgpu::cuda {

constexpr uint32_t kTileRows = 128;    /* rows of an image tile */
constexpr uint32_t kSlab = 64;         /* dimensions of one 128-byte line of a tile */
constexpr uint32_t kTileBytes = 16384; /* kTileRows x kSlab x 2 */
constexpr uint32_t kListRows = 2048;   /* candidates a query may have at once */
constexpr uint32_t kWarpRows = 256;    /* up to so many are one warp's work */
constexpr uint32_t kMaxBatchK = 256;
constexpr uint32_t kSampleTiles = 256; /* whose maxima give the first threshold */
constexpr uint32_t kMaxImageDimensions = 4096;

struct FlatImage {
    /* Of all rows imaged so far: the largest |x - image of x| and the largest |x| (cosine: of x / |x|). */
    struct Bounds {
        float residual, norm;
    };

    bool enabled = false;
    bool decided = false; /* what the 16 bits are: at the first commit with rows */
    bool bfloat = false;
    uint32_t slabs = 0;
    uint32_t rows_done = 0;
    DeviceBuffer<unsigned char> tiles; /* tile, slab, row, 128 bytes in swizzled 16-byte pieces */
    DeviceBuffer<float> h;             /* a row; padded to whole tiles */
    DeviceBuffer<uint32_t> maxima;     /* bits of Bounds; then largest component, residual of the other format */
};

uint64_t flat_image_bytes(const Machine &machine, uint32_t dimensions, uint32_t nodes);
void flat_image_create(FlatImage *image, const Machine &machine, uint32_t dimensions, uint32_t nodes,
                       cudaStream_t stream);
/* Images rows rows_done .. nodes - 1 and returns the bounds of all. Blocks. */
FlatImage::Bounds flat_image_extend(FlatImage *image, Storage storage, const Rows &rows, uint32_t nodes,
                                    cudaStream_t stream);

struct FlatWorkspace {
    DeviceBuffer<unsigned char> queries; /* images of the queries */
    DeviceBuffer<float> errors, thresholds, maxima, masked;
    DeviceBuffer<uint32_t> counts;
    DeviceBuffer<Word> lists;
};

/* The lists of a batch, when launch_flat_lists() has run: what launch_rescore() reads. */
struct FlatLists {
    const Word *words;      /* count x kListRows: (order of -score, row) */
    const uint32_t *counts; /* above kListRows: overflow */
    const float *errors;
};

/* Queries a block of `threads` prunes or re-scores: a warp each if they are many; of few, all warps have one list. */
inline uint32_t lists_a_block(const Machine &machine, uint32_t queries, uint32_t threads)
{
    return queries > static_cast<uint32_t>(machine.sms) * 4 ? threads / 32 : 1;
}

/* Whether the rows of a version whose commit extended the image can be searched so. */
bool flat_batch_possible(const FlatImage &image, uint32_t k);

/* Everything but the re-scoring. `queries` are the raw ones, count x dimensions in device memory. */
FlatLists launch_flat_lists(const Machine &machine, const FlatImage &image, const FlatImage::Bounds &bounds,
                            const Job &job, const float *queries, FlatWorkspace *workspace, cudaStream_t stream);

/* Hits of all queries of a job from the lists. counts[q] is kOverflow where a list overflowed. */
template <Storage kStorage>
void launch_rescore(const Machine &machine, const Job &job, const FlatLists &lists, cudaStream_t stream);

} // namespace vecgpu::cuda
