/*
 * rows.cuh: keys of rows, by one warp. Every search form takes its keys from here, so a pair (query, row) has the same
 * key to the last bit whatever form, batch or neighbours it is computed with.
 *
 * Rows are read in 16-byte pieces. Up to 128 dimensions ("short") a team of 8 lanes owns a row and a warp looks at 4
 * rows at once; above, the warp looks at one row at a time and 4 are in flight. Either way 4 loads of 16 bytes a lane
 * are in flight, 2 KB a warp, which with the warps of an SM is what the memory needs. Sums are float32: pieces in order
 * within a lane, then a butterfly over the lanes.
 *
 * int8 rows have three kernels, by precision. Fine: float32 components, like those of the other storages. Coarse, for
 * scans: dp4a by the query in 16 bits (two signed bytes). Rough, for walks: dp4a by its upper bytes. What the latter two
 * found is computed again by the fine one.
 */
#pragma once

#include "keys.cuh"

#include "core/types.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cfloat>
#include <type_traits>

namespace vecgpu::cuda {

/* The vectors of a mirror in device memory. Bytes beyond the last dimension are zero up to the end of `pieces`. */
struct Rows {
    const uint4 *data;
    /* int8: x = scale, y = |row|^2 (L2) or 1 / |row| (cosine). Other storages: only for cosine, y = 1 / |row|. */
    const float2 *side;
    uint32_t pitch;  /* pieces from one row to the next */
    uint32_t pieces; /* of a row */
    uint32_t dimensions;
    Metric metric;
};

/*
 * First piece of a prepared query; components follow: for int8 those of the coarse kernel, then those of the fine one.
 */
struct QueryHead {
    float step; /* int8: what one unit of the 16-bit components means */
    float norm2;
    float inverse; /* 1 / norm; 0 for a zero vector */
    float unused;
};
static_assert(sizeof(QueryHead) == sizeof(uint4));

/* Of the query, where rows are int8. */
enum class Precision { Fine, Coarse, Rough };

template <Storage kStorage>
struct RowType;

template <>
struct RowType<Storage::Float32> {
    static constexpr int kLoads = 4;   /* pieces a lane reads of a short row */
    static constexpr int kVectors = 1; /* query pieces for one row piece */
    static constexpr int kPerPiece = 4;
    static constexpr bool kSide = false;
    static __device__ __forceinline__ void values(const uint4 &v, float (&x)[4])
    {
        x[0] = __uint_as_float(v.x), x[1] = __uint_as_float(v.y), x[2] = __uint_as_float(v.z),
        x[3] = __uint_as_float(v.w);
    }
};

template <>
struct RowType<Storage::Float16> {
    static constexpr int kLoads = 2, kVectors = 2, kPerPiece = 8;
    static constexpr bool kSide = false;
    static __device__ __forceinline__ void values(const uint4 &v, float (&x)[8])
    {
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __half2 pair;
            memcpy(&pair, &w[i], 4);
            float2 f = __half22float2(pair);
            x[2 * i] = f.x, x[2 * i + 1] = f.y;
        }
    }
};

template <>
struct RowType<Storage::BFloat16> {
    static constexpr int kLoads = 2, kVectors = 2, kPerPiece = 8;
    static constexpr bool kSide = false;
    static __device__ __forceinline__ void values(const uint4 &v, float (&x)[8])
    {
        const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[2 * i] = __uint_as_float(w[i] << 16), x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
    }
};

template <>
struct RowType<Storage::Int8> {
    static constexpr int kLoads = 1, kVectors = 4, kPerPiece = 16;
    static constexpr bool kSide = true;
    static __device__ __forceinline__ void values(const uint4 &v, float (&x)[16])
    {
        /* A byte as the lower end of the float 2^23 + byte: cheaper than a conversion. */
        const uint32_t w[4] = {v.x ^ 0x80808080u, v.y ^ 0x80808080u, v.z ^ 0x80808080u, v.w ^ 0x80808080u};
#pragma unroll
        for (int i = 0; i < 16; i++)
            x[i] = __uint_as_float(__byte_perm(w[i / 4], 0x4B000000u, 0x7540 + i % 4)) - 8388736.f;
    }
};

/* Query pieces of the coarse kernel for int8: upper and lower bytes. They lie before those of the fine one. */
constexpr uint32_t kCoarseVectors = 2;

__device__ __forceinline__ uint4 load_piece(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

/* base + row * stride; written out, as the compiler makes more than twice as many instructions of it. */
__device__ __forceinline__ const uint4 *row_address(const void *base, uint32_t row, uint32_t stride)
{
    const uint4 *p;
    asm("mad.wide.u32 %0, %1, %2, %3;" : "=l"(p) : "r"(row), "r"(stride), "l"(base));
    return p;
}

/* Rows that a warp reads at once. */
constexpr uint32_t kTeams = 4;

/* Rows for each of `warps` warps, at most 32: the same for all, and what one step of a kernel looks at. */
__device__ __forceinline__ uint32_t warp_share(uint32_t rows, uint32_t warps)
{
    return min(32u, (rows + warps * kTeams - 1) / (warps * kTeams) * kTeams);
}

/*
 * kPrecision: see above, for int8 only. kFlight: loads of 16 bytes that a lane has in flight, 4 or 8: it does not change
 * a key.
 */
template <Storage kStorage, bool kDot, bool kShort, Precision kPrecision, int kFlight>
struct RowKernel {
    using Type = RowType<kStorage>;
    static constexpr Storage storage = kStorage;
    /* Rows that one step of keys() looks at: multiples of it waste nothing. */
    static constexpr int kStride = kShort ? kTeams * (kFlight / Type::kLoads) : kTeams;
    static constexpr bool kCoarse = kStorage == Storage::Int8 && kPrecision != Precision::Fine;
    static constexpr bool kRough = kCoarse && kPrecision == Precision::Rough;
    static constexpr uint32_t kVectors = kRough ? 1 : kCoarse ? kCoarseVectors : Type::kVectors;
    /* Sums of products of integers are exact, and one conversion a row is enough, as long as they fit. */
    using Sum = std::conditional_t<kRough || (kCoarse && kShort), int, float>;
    static constexpr bool kRowScale =
        kStorage == Storage::Int8 && !kCoarse && !kDot; /* the sum needs the row's scale */

    /* Where the components for this kernel begin in a prepared query. */
    static __host__ __device__ constexpr uint32_t query_offset(uint32_t pieces)
    {
        return kStorage == Storage::Int8 && !kCoarse ? 1 + kCoarseVectors * pieces : 1;
    }

    /* The sum so far plus what one piece of a row adds; `q` points at the query piece that belongs to it. */
    static __device__ __forceinline__ Sum add(Sum sum, const uint4 &v, const uint4 *q, uint32_t pieces, float scale)
    {
        if constexpr (kCoarse) {
            const uint4 high = q[0];
            int h = 0, l = 0;
            h = __dp4a(static_cast<int>(v.x), static_cast<int>(high.x), h);
            h = __dp4a(static_cast<int>(v.y), static_cast<int>(high.y), h);
            h = __dp4a(static_cast<int>(v.z), static_cast<int>(high.z), h);
            h = __dp4a(static_cast<int>(v.w), static_cast<int>(high.w), h);
            if constexpr (kRough)
                return sum + h;
            const uint4 low = q[pieces];
            l = __dp4a(static_cast<int>(v.x), static_cast<int>(low.x), l);
            l = __dp4a(static_cast<int>(v.y), static_cast<int>(low.y), l);
            l = __dp4a(static_cast<int>(v.z), static_cast<int>(low.z), l);
            l = __dp4a(static_cast<int>(v.w), static_cast<int>(low.w), l);
            return sum + static_cast<Sum>(h * 256 + l);
        } else {
            float x[Type::kPerPiece];
            Type::values(v, x);
#pragma unroll
            for (int k = 0; k < Type::kVectors; k++) {
                const uint4 w = q[k * pieces];
                const float y[4] = {__uint_as_float(w.x), __uint_as_float(w.y), __uint_as_float(w.z),
                                    __uint_as_float(w.w)};
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if constexpr (kDot) {
                        sum = fmaf(x[4 * k + i], y[i], sum);
                    } else {
                        const float d = kRowScale ? fmaf(x[4 * k + i], scale, -y[i]) : x[4 * k + i] - y[i];
                        sum = fmaf(d, d, sum);
                    }
                }
            }
            return sum;
        }
    }

    static __device__ __forceinline__ float finish(Sum total, float2 side, const QueryHead &head, Metric metric)
    {
        float sum = static_cast<float>(total), key;
        if constexpr (kCoarse)
            sum *= side.x * (kRough ? 256 * head.step : head.step);
        else if constexpr (kStorage == Storage::Int8 && kDot)
            sum *= side.x;
        if constexpr (!kDot)
            key = kCoarse ? fmaxf(head.norm2 + side.y - 2 * sum, 0.f) : sum;
        else if (metric == Metric::Cosine)
            key = side.y > 0 && head.inverse > 0 ? 1 - sum * side.y * head.inverse : 2;
        else
            key = -sum;
        return fabsf(key) <= FLT_MAX ? key : FLT_MAX; /* overflow, NaN: as on the host */
    }

    static __device__ __forceinline__ float2 side_of(const Rows &rows, uint32_t id)
    {
        return Type::kSide || (kDot && rows.side) ? __ldg(rows.side + id) : make_float2(1, 0);
    }

    /* The first 512 bytes of a row on their way to L2. */
    static __device__ __forceinline__ void prefetch(const Rows &rows, uint32_t id)
    {
        const uint4 *row = row_address(rows.data, id, rows.pitch * sizeof(uint4));
#pragma unroll
        for (uint32_t p = 0; p < (kShort ? 8 * Type::kLoads : 32); p += 8)
            if (p == 0 || p < rows.pieces)
                asm volatile("prefetch.global.L2 [%0];" ::"l"(row + p));
    }

    /*
     * Keys of 1 <= n <= 32 rows: lane i < n has the number of a row and gets its key; the others have the number of any
     * row. `query` points at the prepared query's components in shared (or global) memory. All lanes call. kFew: n is
     * mostly smaller than kStride.
     */
    template <bool kFew = false>
    static __device__ __forceinline__ float keys(const Rows &rows, const uint4 *query, const QueryHead &head,
                                                 uint32_t id, int n)
    {
        float2 side;
        return keys<kFew>(rows, query, head, id, n, side);
    }

    /* The same, and what rows.side says of the row. */
    template <bool kFew = false>
    static __device__ __forceinline__ float keys(const Rows &rows, const uint4 *query, const QueryHead &head,
                                                 uint32_t id, int n, float2 &side)
    {
        const int lane = threadIdx.x & 31;
        side = make_float2(1, 0);
        if (lane < n)
            side = side_of(rows, id);
        Sum mine = 0;
        if constexpr (kShort) {
            constexpr int kSteps = kFlight / Type::kLoads;
            const int team = lane >> 3, part = lane & 7, from = holder(lane % kStride);
            /* Lanes past the end of a row read its last piece again, which no sum takes. */
            const uint32_t stride = rows.pitch * sizeof(uint4);
            uint32_t piece[Type::kLoads];
#pragma unroll
            for (int c = 0; c < Type::kLoads; c++)
                piece[c] = min(part + 8u * c, rows.pieces - 1);
            const uint4 *const data = rows.data + piece[0];
#pragma unroll 1
            for (int first = 0; first < n; first += kStride) {
                uint4 v[kSteps][Type::kLoads];
#pragma unroll
                for (int s = 0; s < kSteps; s++) {
                    if (kFew && s > 0 && first + s * static_cast<int>(kTeams) >= n)
                        break;
                    const uint32_t slot = __shfl_sync(kFullWarp, id, first + s * kTeams + team);
                    const uint4 *p = row_address(data, slot, stride);
#pragma unroll
                    for (int c = 0; c < Type::kLoads; c++)
                        v[s][c] = load_piece(p + (piece[c] - piece[0]));
                }
                Sum sum[kSteps];
                float scale[kSteps];
#pragma unroll
                for (int s = 0; s < kSteps; s++) {
                    sum[s] = 0;
                    scale[s] = kRowScale ? __shfl_sync(kFullWarp, side.x, (first + s * kTeams + team) & 31) : 1.f;
                }
#pragma unroll
                for (int c = 0; c < Type::kLoads; c++) {
                    const bool within = part + 8 * c < rows.pieces; /* a branch would hold up loads */
#pragma unroll
                    for (int s = 0; s < kSteps; s++) {
                        if (kFew && s > 0 && first + s * static_cast<int>(kTeams) >= n)
                            break;
                        const Sum more = add(sum[s], v[s][c], query + piece[c], rows.pieces, scale[s]);
                        sum[s] = within ? more : sum[s];
                    }
                }
                const Sum got = __shfl_sync(kFullWarp, reduce<kSteps, 8>(sum, lane), from);
                if (lane / kStride * kStride == first)
                    mine = got;
            }
        } else {
            constexpr int kRows = kFlight;
            static_assert(kRows == 4 || kRows == 8);
#pragma unroll 1
            for (int first = 0; first < n; first += kRows) {
                const uint4 *p[kRows];
                Sum sum[kRows];
                float scale[kRows];
#pragma unroll
                for (int r = 0; r < kRows; r++) {
                    int row =
                        min(first + r, n - 1); /* rows past the end repeat the last one: no branch around the loads */
                    p[r] = row_address(rows.data, __shfl_sync(kFullWarp, id, row), rows.pitch * sizeof(uint4));
                    sum[r] = 0;
                    scale[r] = kRowScale ? __shfl_sync(kFullWarp, side.x, row) : 1.f;
                }
#pragma unroll 1
                for (uint32_t piece = lane; piece < rows.pieces; piece += 32) {
                    uint4 v[kRows];
#pragma unroll
                    for (int r = 0; r < kRows; r++)
                        if (r < 4 || first + 4 < n)
                            v[r] = load_piece(p[r] + piece);
#pragma unroll
                    for (int r = 0; r < kRows; r++)
                        sum[r] = add(sum[r], v[r], query + piece, rows.pieces, scale[r]);
                }
                __syncwarp();
                const Sum got = __shfl_sync(kFullWarp, reduce<kRows, 32>(sum, lane), lane % kRows * (32 / kRows));
                if (lane / kRows * kRows == first)
                    mine = got;
            }
        }
        return finish(mine, side, head, rows.metric);
    }

    /*
     * The lane that has the sum of row j of a step over short rows: of team j % 4, the one whose part is j / 4 in units
     * of 8 / kSteps.
     */
    static __device__ __forceinline__ int holder(int j)
    {
        constexpr int kSteps = kFlight / Type::kLoads;
        return ((j & 3) * 8 + (j >> 2) * (8 / kSteps)) & 31;
    }

    /*
     * Sums of kCount values over groups of kWidth lanes: value j ends in the lanes of the group with lane / (kWidth /
     * kCount) == j. Halves the values with each step, so kCount sums cost hardly more shuffles than one; the tree of
     * additions is the butterfly's.
     */
    template <int kCount, int kWidth>
    static __device__ __forceinline__ Sum reduce(Sum (&v)[kCount], int lane)
    {
#pragma unroll
        for (int offset = kWidth / 2, m = kCount / 2; offset >= 1; offset >>= 1, m >>= 1) {
            if (m >= 1) {
                bool upper = lane & offset;
#pragma unroll
                for (int j = 0; j < kCount / 2; j++)
                    if (j < m) {
                        Sum send = upper ? v[j] : v[j + m], keep = upper ? v[j + m] : v[j];
                        v[j] = keep + __shfl_xor_sync(kFullWarp, send, offset);
                    }
            } else {
                v[0] += __shfl_xor_sync(kFullWarp, v[0], offset);
            }
        }
        return v[0];
    }
};

/* Pieces of a prepared query, head included. */
__host__ __device__ constexpr uint32_t query_pieces(Storage storage, uint32_t pieces)
{
    return 1 + (storage == Storage::Float32 ? 1 : storage == Storage::Int8 ? kCoarseVectors + 4 : 2) * pieces;
}

/* 16-byte pieces that hold `dimensions` components. */
constexpr uint32_t row_pieces(Storage storage, uint32_t dimensions)
{
    uint32_t per = storage == Storage::Float32 ? 4 : storage == Storage::Int8 ? 16 : 8;
    return (dimensions + per - 1) / per;
}

constexpr uint32_t kShortDimensions = 128;

/* Calls work.template run<RowKernel<...>>() with the kernel for a mirror's rows. */
template <Storage kStorage, Precision kPrecision, int kShortFlight, int kLongFlight, class Work>
void with_kernel(Metric metric, uint32_t dimensions, Work &&work)
{
    bool brief = dimensions <= kShortDimensions;
    if (metric == Metric::L2) {
        if (brief)
            work.template run<RowKernel<kStorage, false, true, kPrecision, kShortFlight>>();
        else
            work.template run<RowKernel<kStorage, false, false, kPrecision, kLongFlight>>();
    } else {
        if (brief)
            work.template run<RowKernel<kStorage, true, true, kPrecision, kShortFlight>>();
        else
            work.template run<RowKernel<kStorage, true, false, kPrecision, kLongFlight>>();
    }
}

} // namespace vecgpu::cuda
