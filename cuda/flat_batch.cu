/* flat_batch.cu: see flat_batch.h. */
#include "flat_batch.cuh"

#include "components.cuh"
#include "query.cuh"

#include <algorithm>
#include <numeric>

namespace vecgpu::cuda {

namespace {

__device__ __forceinline__ uint32_t pack_pair(float x, float y, bool bfloat)
{
    uint32_t word;
    if (bfloat) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        memcpy(&word, &pair, 4);
    } else {
        __half2 pair = __floats2half2_rn(x, y);
        memcpy(&word, &pair, 4);
    }
    return word;
}

__device__ __forceinline__ double residual2(float x, bool bfloat)
{
    const double y = bfloat ? __bfloat162float(__float2bfloat16_rn(x)) : __half2float(__float2half_rn(x));
    return (x - y) * (x - y);
}

/* Word `w` (dimensions 2w, 2w + 1) of line `line` of an image whose blocks have `lines` lines. */
__device__ __forceinline__ uint32_t *image_word(unsigned char *image, uint64_t line, uint32_t lines, uint32_t slabs,
                                                uint32_t w)
{
    const uint32_t slab = w / 32, piece = w % 32 / 4, in = static_cast<uint32_t>(line % lines);
    return reinterpret_cast<uint32_t *>(image + ((line / lines * slabs + slab) * lines + in) * 128 +
                                        ((piece ^ (in & 7)) * 16) + w % 4 * 4);
}

__device__ __forceinline__ float above(double v)
{
    return static_cast<float>(v * 1.000001);
}

/*
 * One warp a row. Without `tiles` only the maxima, of both formats: [0] residual, [1] norm, [2] largest component, [3]
 * bfloat16 residual.
 */
__global__ void __launch_bounds__(256)
    image_rows_kernel(Storage storage, const Rows rows, uint32_t first, uint32_t last, bool bfloat, uint32_t slabs,
                      unsigned char *tiles, float *h, uint32_t *maxima)
{
    const int lane = threadIdx.x & 31;
    const uint32_t warps = gridDim.x * 8;
    float most[4] = {0, 0, 0, 0};
    for (uint64_t row = static_cast<uint64_t>(first) + blockIdx.x * 8 + threadIdx.x / 32; row < last; row += warps) {
        const uint32_t slot = static_cast<uint32_t>(row);
        const float factor = rows.metric == Metric::Cosine ? rows.side[slot].y : 1.f;
        double norm2 = 0, residual = 0, other = 0;
        float largest = 0;
        for (uint32_t w = lane; w < slabs * 32; w += 32) {
            const float x = 2 * w < rows.dimensions ? component(storage, rows, slot, 2 * w) * factor : 0.f;
            const float y = 2 * w + 1 < rows.dimensions ? component(storage, rows, slot, 2 * w + 1) * factor : 0.f;
            norm2 += static_cast<double>(x) * x + static_cast<double>(y) * y;
            largest = fmaxf(largest, fmaxf(fabsf(x), fabsf(y)));
            residual += residual2(x, bfloat) + residual2(y, bfloat);
            if (tiles)
                *image_word(tiles, row, kTileRows, slabs, w) = pack_pair(x, y, bfloat);
            else
                other += residual2(x, true) + residual2(y, true);
        }
        norm2 = warp_sum(norm2);
        residual = warp_sum(residual);
        other = warp_sum(other);
        /* A zero row under cosine has key 2 by definition, which is the score -1. */
        if (lane == 0 && tiles)
            h[slot] = rows.metric == Metric::L2                     ? static_cast<float>(norm2 / 2)
                      : rows.metric == Metric::Cosine && norm2 == 0 ? 1.f
                                                                    : 0.f;
        most[0] = fmaxf(most[0], above(sqrt(residual)));
        most[1] = fmaxf(most[1], above(sqrt(norm2)));
        most[2] = fmaxf(most[2], largest);
        most[3] = fmaxf(most[3], above(sqrt(other)));
    }
    /* Bits of floats that are not negative are in their order; NaN and infinity are the greatest. */
    for (int i = 0; i < 4; i++) {
        uint32_t bits = __reduce_max_sync(kFullWarp, __float_as_uint(most[i]) & 0x7fffffff);
        if (lane == 0)
            atomicMax(maxima + i, bits);
    }
}

/*
 * One warp a query: image, and the bound of a score's error against the key that rows.cuh computes:
 *   |q - q~| R + |q~| r                rounding of the operands, R and r the bounds of the image
 *   D 2^-22 |q~| (R + r)               sum in the tensor cores (no more than 2^-22 of |q~||x~| an addend)
 *   4 2^-24 (|q~| (R + r) + R^2)       h, and the subtraction
 *   D 2^-24 (|q| + R)^2                float32 sums of the key, for L2; D 2^-23 |q| R for products
 * A query without a finite bound is left to the general form: its list counts as overflowed from the start.
 */
__global__ void __launch_bounds__(256)
    image_queries_kernel(Metric metric, const float *queries, uint32_t dimensions, uint32_t count, uint32_t padded,
                         uint32_t lines, bool bfloat, uint32_t slabs, FlatImage::Bounds bounds, unsigned char *image,
                         float *errors, float *thresholds, uint32_t *counts)
{
    const int lane = threadIdx.x & 31;
    const uint32_t q = blockIdx.x * 8 + threadIdx.x / 32;
    if (q >= padded)
        return;
    const bool real = q < count;
    const float *query = queries + static_cast<size_t>(q) * dimensions;
    double length2 = 0;
    if (real && metric == Metric::Cosine) {
        for (uint32_t d = lane; d < dimensions; d += 32)
            length2 += static_cast<double>(query[d]) * query[d];
        length2 = warp_sum(length2);
    }
    const float factor = metric != Metric::Cosine ? 1.f
                         : length2 > 0            ? static_cast<float>(1 / sqrt(length2))
                                                  : INFINITY;
    double norm2 = 0, residual = 0;
    for (uint32_t w = lane; w < slabs * 32; w += 32) {
        const float x = real && 2 * w < dimensions ? query[2 * w] * factor : 0.f;
        const float y = real && 2 * w + 1 < dimensions ? query[2 * w + 1] * factor : 0.f;
        norm2 += static_cast<double>(x) * x + static_cast<double>(y) * y;
        residual += residual2(x, bfloat) + residual2(y, bfloat);
        *image_word(image, q, lines, slabs, w) = pack_pair(x, y, bfloat);
    }
    norm2 = warp_sum(norm2);
    residual = warp_sum(residual);
    if (lane != 0)
        return;
    const double R = bounds.norm, r = bounds.residual, norm = sqrt(norm2), off = sqrt(residual),
                 image_norm = norm + off;
    const double ulp = 1.0 / (1 << 24), D = dimensions;
    double error =
        off * R + image_norm * r + D * 4 * ulp * image_norm * (R + r) + 4 * ulp * (image_norm * (R + r) + R * R);
    error += metric == Metric::L2 ? (D + 16) * ulp * (norm + R) * (norm + R) : (D + 16) * 2 * ulp * norm * R;
    const bool good = error * 1.0001 < 1e37 && norm * R < 1e37 && R * R < 1e37;
    errors[q] = static_cast<float>(error * 1.0001);
    counts[q] = real && !good ? kListRows + 1 : 0;
    thresholds[q] = INFINITY;
}

constexpr int kThresholdThreads = 256;

/* The first threshold, from maxima of groups of rows. */
__global__ void __launch_bounds__(kThresholdThreads)
    first_threshold_kernel(const float *maxima, uint32_t groups, uint32_t k, const float *errors,
                           const uint32_t *counts, float *thresholds)
{
    __shared__ BlockBoundStorage storage;
    constexpr int kItems = 4 * kSampleTiles / kThresholdThreads;
    const uint32_t q = blockIdx.x;
    uint32_t orders[kItems];
#pragma unroll
    for (int i = 0; i < kItems; i++) {
        const uint32_t at = i * kThresholdThreads + threadIdx.x;
        orders[i] = at < groups ? order_of(-maxima[static_cast<size_t>(q) * groups + at]) : kNanOrder;
    }
    const uint32_t bound = block_bound<kItems>(orders, k, k / 16 + 1, storage);
    if (threadIdx.x == 0)
        thresholds[q] = counts[q] > kListRows ? INFINITY : score_threshold(bound, errors[q]);
}

/*
 * Drops what can no longer be among the k nearest; the new threshold. A block has `each` queries, at most one a warp:
 * lists of at most kWarpRows words are a warp's, longer ones the block's, one after the other.
 */
__global__ void __launch_bounds__(kThresholdThreads)
    prune_kernel(Word *lists, uint32_t *counts, uint32_t queries, uint32_t each, uint32_t k, uint32_t slack,
                 const float *errors, float *thresholds)
{
    const uint32_t lane = threadIdx.x & 31, first = blockIdx.x * each, mine = first + threadIdx.x / 32;
    const uint32_t end = min(first + each, queries);
    if (mine < end && counts[mine] <= kWarpRows) {
        constexpr int kItems = kWarpRows / 32;
        const uint32_t count = counts[mine];
        Word *list = lists + static_cast<size_t>(mine) * kListRows, words[kItems];
        uint32_t orders[kItems];
#pragma unroll
        for (int i = 0; i < kItems; i++) {
            words[i] = i * 32 + lane < count ? list[i * 32 + lane] : kNoWord;
            orders[i] = static_cast<uint32_t>(words[i] >> 32);
        }
        const float threshold = score_threshold(warp_bound(orders, k, slack), errors[mine]);
        const uint32_t limit = order_of(-threshold);
        uint32_t kept = 0;
#pragma unroll
        for (int i = 0; i < kItems; i++) {
            const bool stays = words[i] != kNoWord && orders[i] <= limit;
            const uint32_t all = __ballot_sync(kFullWarp, stays);
            if (stays)
                list[kept + __popc(all & ((1u << lane) - 1))] = words[i];
            kept += __popc(all);
        }
        if (lane == 0) {
            counts[mine] = kept;
            thresholds[mine] = threshold;
        }
    }
    __shared__ BlockBoundStorage storage;
    __shared__ uint32_t counter;
    constexpr int kItems = kListRows / kThresholdThreads;
    for (uint32_t q = first; q < end; q++) {
        const uint32_t count = counts[q]; /* warps only change those that are small and stay so */
        if (count <= kWarpRows)
            continue;
        if (count > kListRows) {
            if (threadIdx.x == 0)
                thresholds[q] = INFINITY; /* lost: no more work for it */
            continue;
        }
        Word *list = lists + static_cast<size_t>(q) * kListRows, words[kItems];
        uint32_t orders[kItems];
#pragma unroll
        for (int i = 0; i < kItems; i++) {
            const uint32_t at = i * kThresholdThreads + threadIdx.x;
            words[i] = at < count ? list[at] : kNoWord;
            orders[i] = static_cast<uint32_t>(words[i] >> 32);
        }
        if (threadIdx.x == 0)
            counter = 0;
        const uint32_t bound = block_bound<kItems>(orders, k, slack, storage);
        const float threshold = score_threshold(bound, errors[q]);
        const uint32_t limit = order_of(-threshold);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kItems; i++)
            if (words[i] != kNoWord && orders[i] <= limit)
                list[atomicAdd(&counter, 1u)] = words[i];
        __syncthreads();
        if (threadIdx.x == 0) {
            counts[q] = counter;
            thresholds[q] = threshold;
        }
        __syncthreads();
    }
}

__global__ void __launch_bounds__(256)
    mask_kernel(const float *h, const uint32_t *bits, uint32_t nodes, uint32_t padded, float *masked)
{
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * 256 + threadIdx.x; i < padded;
         i += static_cast<uint64_t>(gridDim.x) * 256)
        masked[i] = i < nodes && (bits[i / 32] >> (i & 31) & 1) ? h[i] : INFINITY;
}

uint32_t tiles_of(uint32_t nodes)
{
    return (nodes + kTileRows - 1) / kTileRows;
}

/*
 * Tiles of a unit: few enough that the last round of units is full, many enough that loading the queries is worth it.
 */
uint32_t run_length(uint32_t tiles, uint32_t query_blocks, uint32_t sms)
{
    uint32_t best = 1;
    double least = 1e30;
    for (uint32_t run = 1; run <= 64; run++) {
        const uint64_t units = static_cast<uint64_t>((tiles + run - 1) / run) * query_blocks;
        const double cost = static_cast<double>((units + sms - 1) / sms) * (run + 2.0);
        if (cost < least) {
            least = cost;
            best = run;
        }
    }
    return best;
}

uint32_t spread(uint32_t tiles)
{
    uint32_t stride = std::max<uint32_t>(1, static_cast<uint32_t>(tiles * 0.6180339887));
    while (std::gcd(stride, tiles) != 1)
        stride++;
    return stride % tiles; /* one tile: 0 */
}

struct PassLauncher {
    const Machine &machine;
    const PassArguments &arguments;
    bool append;
    cudaStream_t stream;

    template <int kBlocks, bool kResident, int kSlabs, bool kAppend, bool kBfloat>
    void launch()
    {
        PassArguments a = arguments;
        const size_t query_bytes = static_cast<size_t>(kBlocks) * 128 * 128, staged = 8 * kStaged * (sizeof(Word) + 2);
        const size_t stage = kTileBytes + (kResident ? 0 : query_bytes),
                     fixed = staged + (kResident ? a.slabs * query_bytes : 0);
        a.stages = static_cast<int>(std::min<size_t>(kMaxStages, (machine.shared_per_block - 2048 - fixed) / stage));
        allow_shared<flat_pass_kernel<kBlocks, kResident, kSlabs, kAppend, kBfloat>>(fixed + a.stages * stage,
                                                                                     machine.ordinal);
        const uint32_t units = (a.last - a.first + a.run - 1) / a.run * a.query_blocks;
        flat_pass_kernel<kBlocks, kResident, kSlabs, kAppend, kBfloat>
            <<<std::min<uint32_t>(units, machine.sms), kBatchThreads, fixed + a.stages * stage, stream>>>(a);
        check_launch("flat_pass");
    }

    template <int kBlocks, bool kResident, int kSlabs>
    void formats(bool bfloat)
    {
        if (append)
            bfloat ? launch<kBlocks, kResident, kSlabs, true, true>()
                   : launch<kBlocks, kResident, kSlabs, true, false>();
        else
            bfloat ? launch<kBlocks, kResident, kSlabs, false, true>()
                   : launch<kBlocks, kResident, kSlabs, false, false>();
    }

    template <int kBlocks>
    void blocks(bool resident, bool bfloat)
    {
        if (!resident)
            formats<kBlocks, false, 0>(bfloat);
        else if (arguments.slabs == 2)
            formats<kBlocks, true, 2>(bfloat);
        else
            formats<kBlocks, true, 0>(bfloat);
    }

    void run(uint32_t query_blocks, bool resident, bool bfloat)
    {
        query_blocks == 1 ? blocks<1>(resident, bfloat) : blocks<2>(resident, bfloat);
    }
};

} // namespace

uint64_t flat_image_bytes(const Machine &machine, uint32_t dimensions, uint32_t nodes)
{
    if (machine.major != 9 || dimensions > kMaxImageDimensions)
        return 0;
    const uint64_t tiles = tiles_of(nodes);
    return tiles * ((dimensions + kSlab - 1) / kSlab) * kTileBytes + tiles * kTileRows * sizeof(float);
}

void flat_image_create(FlatImage *image, const Machine &machine, uint32_t dimensions, uint32_t nodes,
                       cudaStream_t stream)
{
    image->enabled = flat_image_bytes(machine, dimensions, nodes) > 0;
    if (!image->enabled)
        return;
    image->slabs = (dimensions + kSlab - 1) / kSlab;
    image->tiles.allocate(static_cast<size_t>(tiles_of(nodes)) * image->slabs * kTileBytes);
    image->h.allocate(static_cast<size_t>(tiles_of(nodes)) * kTileRows);
    image->maxima.allocate(4);
    check(cudaMemsetAsync(image->tiles.data(), 0, image->tiles.count(), stream), "image");
    check(cudaMemsetAsync(image->h.data(), 0, image->h.count() * sizeof(float), stream), "image");
    check(cudaMemsetAsync(image->maxima.data(), 0, 4 * sizeof(uint32_t), stream), "image");
}

FlatImage::Bounds flat_image_extend(FlatImage *image, Storage storage, const Rows &rows, uint32_t nodes,
                                    cudaStream_t stream)
{
    float most[4] = {0, 0, 0, 0};
    auto read = [&] {
        check(cudaMemcpyAsync(most, image->maxima.data(), sizeof most, cudaMemcpyDeviceToHost, stream), "image bounds");
        check(cudaStreamSynchronize(stream), "image bounds");
    };
    const int blocks = 2048;
    if (nodes > image->rows_done) {
        if (!image->decided) {
            image_rows_kernel<<<blocks, 256, 0, stream>>>(storage, rows, 0, nodes, false, image->slabs, nullptr,
                                                          nullptr, image->maxima.data());
            check_launch("image_rows");
            read();
            /* float16 is finer, but has a range: rows to come may be larger, so it must fit with room to spare. */
            image->bfloat = !(most[2] < 16384 && most[0] <= most[3]);
            image->decided = true;
            check(cudaMemsetAsync(image->maxima.data(), 0, 4 * sizeof(uint32_t), stream), "image");
        }
        image_rows_kernel<<<blocks, 256, 0, stream>>>(storage, rows, image->rows_done, nodes, image->bfloat,
                                                      image->slabs, image->tiles.data(), image->h.data(),
                                                      image->maxima.data());
        check_launch("image_rows");
        image->rows_done = nodes;
    }
    read();
    return {most[0], most[1]};
}

bool flat_batch_possible(const FlatImage &image, uint32_t k)
{
    return image.enabled && image.decided && k <= kMaxBatchK;
}

FlatLists launch_flat_lists(const Machine &machine, const FlatImage &image, const FlatImage::Bounds &bounds,
                            const Job &job, const float *queries, FlatWorkspace *workspace, cudaStream_t stream)
{
    const uint32_t sms = machine.sms, tiles = tiles_of(job.nodes);
    const bool resident = image.slabs <= 8;
    const uint32_t blocks = job.count <= 128 || (resident && image.slabs > 4) ? 1 : 2, lines = 128 * blocks;
    const uint32_t query_blocks = (job.count + lines - 1) / lines, padded = query_blocks * lines;
    const uint32_t sample = std::min(tiles, job.count >= 1000 ? kSampleTiles : kSampleTiles / 2);
    workspace->queries.reserve(static_cast<size_t>(padded) * image.slabs * 128);
    workspace->errors.reserve(padded);
    workspace->thresholds.reserve(padded);
    workspace->counts.reserve(padded);
    workspace->maxima.reserve(static_cast<size_t>(padded) * 4 * kSampleTiles);
    workspace->lists.reserve(static_cast<size_t>(padded) * kListRows);

    image_queries_kernel<<<(padded + 7) / 8, 256, 0, stream>>>(
        job.rows.metric, queries, job.rows.dimensions, job.count, padded, lines, image.bfloat, image.slabs, bounds,
        workspace->queries.data(), workspace->errors.data(), workspace->thresholds.data(), workspace->counts.data());
    check_launch("image_queries");
    const float *h = image.h.data();
    if (job.bits) {
        workspace->masked.reserve(static_cast<size_t>(tiles) * kTileRows);
        mask_kernel<<<sms * 4, 256, 0, stream>>>(h, job.bits, job.nodes, tiles * kTileRows, workspace->masked.data());
        check_launch("mask");
        h = workspace->masked.data();
    }
    PassArguments a = {};
    a.queries = workspace->queries.data();
    a.tiles = image.tiles.data();
    a.h = h;
    a.nodes = job.nodes;
    a.slabs = image.slabs;
    a.query_blocks = query_blocks;
    a.table_tiles = tiles;
    a.stride = spread(tiles);
    a.thresholds = workspace->thresholds.data();
    a.counts = workspace->counts.data();
    a.lists = workspace->lists.data();
    a.maxima = workspace->maxima.data();
    auto pass = [&](uint32_t first, uint32_t last, bool append) {
        a.first = first;
        a.last = last;
        a.run = run_length(last - first, query_blocks, sms);
        PassLauncher{machine, a, append, stream}.run(blocks, resident, image.bfloat);
    };
    pass(0, sample, false);
    first_threshold_kernel<<<job.count, kThresholdThreads, 0, stream>>>(
        a.maxima, sample * 4, job.k, workspace->errors.data(), workspace->counts.data(), workspace->thresholds.data());
    check_launch("first_threshold");
    /* Few queries: two passes, launches count. Many: each pass doubles what was seen, so that lists stay short. */
    const uint64_t growth = job.count <= 128 && job.k <= 32 ? 16 : 2;
    for (uint64_t first = 0, last = 2 * kSampleTiles; first < tiles; first = last, last *= growth) {
        if (last > tiles)
            last = tiles;
        pass(static_cast<uint32_t>(first), static_cast<uint32_t>(last), true);
        if (last == tiles)
            break; /* the re-scoring does the last pruning */
        const uint32_t each = lists_a_block(machine, job.count, kThresholdThreads);
        prune_kernel<<<(job.count + each - 1) / each, kThresholdThreads, 0, stream>>>(
            workspace->lists.data(), workspace->counts.data(), job.count, each, job.k, job.k / 8 + 1,
            workspace->errors.data(), workspace->thresholds.data());
        check_launch("prune");
    }
    return {workspace->lists.data(), workspace->counts.data(), workspace->errors.data()};
}

} // namespace vecgpu::cuda
