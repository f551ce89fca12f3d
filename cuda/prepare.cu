/*
 * prepare.cu: queries and rows into the form that the search kernels read (rows.cuh).
 */
#include "convert.h"
#include "query.cuh"
#include "status.h"

#include <algorithm>

namespace vecgpu::cuda {

namespace {

__device__ __forceinline__ void prepare(Storage storage, const float *queries, uint32_t dimensions, uint32_t pieces,
                                        uint32_t count, uint4 *prepared)
{
    const int lane = threadIdx.x & 31;
    const uint32_t q = blockIdx.x * 4 + threadIdx.x / 32;
    if (q >= count)
        return;
    const float *query = queries + static_cast<size_t>(q) * dimensions;
    uint4 *out = prepared + static_cast<size_t>(q) * query_pieces(storage, pieces);
    const QueryHead head = query_head([&](uint32_t d) { return query[d]; }, dimensions);
    uint4 first;
    memcpy(&first, &head, sizeof first);
    if (lane == 0)
        out[0] = first;
    out++;
    if (storage == Storage::Int8)
        coarse_components(query, dimensions, pieces, head.step, out, lane, 32);
    fine_components(storage, query, dimensions, pieces, out + fine_offset(storage, pieces), lane, 32);
}

/* One warp a query. */
__global__ void __launch_bounds__(128) prepare_kernel(Storage storage, const float *queries, uint32_t dimensions,
                                                      uint32_t pieces, uint32_t count, uint4 *prepared)
{
    prepare(storage, queries, dimensions, pieces, count, prepared);
}

__global__ void __launch_bounds__(128)
    prepare_inline_kernel(Storage storage, const __grid_constant__ InlineQueries queries, float *raw,
                          uint32_t dimensions, uint32_t pieces, uint32_t count, uint4 *prepared)
{
    for (uint32_t i = blockIdx.x * 128 + threadIdx.x; i < count * dimensions; i += gridDim.x * 128)
        raw[i] = queries.values[i];
    prepare(storage, queries.values, dimensions, pieces, count, prepared);
}

/* One warp a row: pages' rows (record_bytes each, 4-byte words) to padded rows, and what goes beside them. */
__global__ void __launch_bounds__(128)
    place_rows_kernel(const RowTarget target, const uint32_t *records, uint32_t first, uint32_t count)
{
    const int lane = threadIdx.x & 31;
    const uint32_t i = blockIdx.x * 4 + threadIdx.x / 32;
    if (i >= count)
        return;
    const uint32_t words = target.record_bytes / 4;
    const uint32_t *record = records + static_cast<size_t>(i) * words;
    uint32_t *row = reinterpret_cast<uint32_t *>(target.rows + static_cast<size_t>(first + i) * target.pitch);
    const bool bytes = target.storage == Storage::Int8;
    const uint32_t skip = bytes ? 1 : 0; /* the scale */
    float scale = bytes ? __uint_as_float(record[0]) : 1.f;
    double norm2 = 0;
    for (uint32_t w = lane; w < target.pitch * 4; w += 32) {
        uint32_t v = w + skip < words ? record[w + skip] : 0;
        row[w] = v;
        if (!target.side)
            continue;
        switch (target.storage) {
        case Storage::Float32: {
            double x = __uint_as_float(v);
            norm2 += x * x;
            break;
        }
        case Storage::Float16: {
            __half2 pair;
            memcpy(&pair, &v, 4);
            double x = __low2float(pair), y = __high2float(pair);
            norm2 += x * x + y * y;
            break;
        }
        case Storage::BFloat16: {
            double x = __uint_as_float(v << 16), y = __uint_as_float(v & 0xffff0000u);
            norm2 += x * x + y * y;
            break;
        }
        case Storage::Int8:
            norm2 += __dp4a(static_cast<int>(v), static_cast<int>(v), 0);
            break;
        }
    }
    if (!target.side)
        return;
    norm2 = warp_sum(norm2) * scale * scale;
    if (lane == 0)
        target.side[first + i] =
            make_float2(scale, target.metric == Metric::Cosine ? inverse_norm(norm2) : static_cast<float>(norm2));
}

__global__ void __launch_bounds__(256)
    place_links_kernel(const LinkTarget target, const uint8_t *records, uint32_t first, uint32_t count)
{
    const uint64_t cells = static_cast<uint64_t>(count) * target.degree;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < cells;
         i += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
        const uint64_t record = i / target.degree;
        const uint32_t cell = static_cast<uint32_t>(i % target.degree);
        const uint8_t *p = records + record * target.record_bytes + static_cast<size_t>(cell) * target.width;
        uint32_t id = p[0] | p[1] << 8, none = 0xffff;
        if (target.width > 2)
            id |= p[2] << 16, none = 0xffffff;
        if (target.width > 3)
            id |= static_cast<uint32_t>(p[3]) << 24, none = kNone;
        target.links[(first + record) * target.degree + cell] = id == none ? kNone : id;
    }
}

__global__ void __launch_bounds__(256) and_bits_kernel(const uint32_t *a, uint32_t *b, uint32_t words)
{
    for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < words; i += gridDim.x * 256)
        b[i] &= a[i];
}

} // namespace

void launch_and_bits(const uint32_t *a, uint32_t *b, uint32_t words, cudaStream_t stream)
{
    and_bits_kernel<<<std::min(words / 256 + 1, 1024u), 256, 0, stream>>>(a, b, words);
    check_launch("and_bits");
}

void launch_prepare(Storage storage, const float *queries, uint32_t dimensions, uint32_t pieces, uint32_t count,
                    uint4 *prepared, cudaStream_t stream)
{
    prepare_kernel<<<(count + 3) / 4, 128, 0, stream>>>(storage, queries, dimensions, pieces, count, prepared);
    check_launch("prepare");
}

void launch_prepare_inline(Storage storage, const float *host, float *raw, uint32_t dimensions, uint32_t pieces,
                           uint32_t count, uint4 *prepared, cudaStream_t stream)
{
    InlineQueries queries;
    std::copy_n(host, static_cast<size_t>(count) * dimensions, queries.values);
    prepare_inline_kernel<<<(count + 3) / 4, 128, 0, stream>>>(storage, queries, raw, dimensions, pieces, count,
                                                               prepared);
    check_launch("prepare");
}

void launch_place_rows(const RowTarget &target, const void *records, uint32_t first, uint32_t count,
                       cudaStream_t stream)
{
    place_rows_kernel<<<(count + 3) / 4, 128, 0, stream>>>(target, static_cast<const uint32_t *>(records), first,
                                                           count);
    check_launch("place_rows");
}

void launch_place_links(const LinkTarget &target, const void *records, uint32_t first, uint32_t count,
                        cudaStream_t stream)
{
    const uint64_t cells = static_cast<uint64_t>(count) * target.degree;
    place_links_kernel<<<static_cast<unsigned>(std::min<uint64_t>(cells / 256 + 1, 65536)), 256, 0, stream>>>(
        target, static_cast<const uint8_t *>(records), first, count);
    check_launch("place_links");
}

} // namespace vecgpu::cuda
