/*
 * distance_avx2.cpp: kernels for AVX2, FMA and F16C. Only intrinsics and internal linkage, see distance_tables.h.
 *
 * Four accumulators of 8 lanes hide the latency of FMA. The last dimensions % 8 elements are copied to a zeroed block, so
 * nothing is read beyond the row.
 */
#include "core/distance_tables.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include <immintrin.h>

namespace vecgpu {
namespace {

#define VECGPU_FORCE_INLINE static inline __attribute__((always_inline))

struct Float32Row {
    const float *data;
    VECGPU_FORCE_INLINE Float32Row open(const void *row) { return {static_cast<const float *>(row)}; }
    __attribute__((always_inline)) __m256 load(uint32_t i) const { return _mm256_loadu_ps(data + i); }
    __attribute__((always_inline)) __m256 load(uint32_t i, uint32_t count) const
    {
        alignas(32) float block[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (uint32_t j = 0; j < count; j++)
            block[j] = data[i + j];
        return _mm256_load_ps(block);
    }
};

struct Float16Row {
    const uint16_t *data;
    VECGPU_FORCE_INLINE Float16Row open(const void *row) { return {static_cast<const uint16_t *>(row)}; }
    __attribute__((always_inline)) __m256 load(uint32_t i) const
    {
        return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(data + i)));
    }
    __attribute__((always_inline)) __m256 load(uint32_t i, uint32_t count) const
    {
        alignas(16) uint16_t block[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (uint32_t j = 0; j < count; j++)
            block[j] = data[i + j];
        return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i *>(block)));
    }
};

struct BFloat16Row {
    const uint16_t *data;
    VECGPU_FORCE_INLINE BFloat16Row open(const void *row) { return {static_cast<const uint16_t *>(row)}; }
    VECGPU_FORCE_INLINE __m256 widen(__m128i half)
    {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    __attribute__((always_inline)) __m256 load(uint32_t i) const
    {
        return widen(_mm_loadu_si128(reinterpret_cast<const __m128i *>(data + i)));
    }
    __attribute__((always_inline)) __m256 load(uint32_t i, uint32_t count) const
    {
        alignas(16) uint16_t block[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (uint32_t j = 0; j < count; j++)
            block[j] = data[i + j];
        return widen(_mm_load_si128(reinterpret_cast<const __m128i *>(block)));
    }
};

struct Int8Row {
    const int8_t *data;
    __m256 scale;
    VECGPU_FORCE_INLINE Int8Row open(const void *row)
    {
        return {static_cast<const int8_t *>(row) + 4, _mm256_set1_ps(*static_cast<const float *>(row))};
    }
    __attribute__((always_inline)) __m256 widen(__m128i bytes) const
    {
        return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
    }
    __attribute__((always_inline)) __m256 load(uint32_t i) const
    {
        return widen(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(data + i)));
    }
    __attribute__((always_inline)) __m256 load(uint32_t i, uint32_t count) const
    {
        alignas(16) int8_t block[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        for (uint32_t j = 0; j < count; j++)
            block[j] = data[i + j];
        return widen(_mm_load_si128(reinterpret_cast<const __m128i *>(block)));
    }
};

/* Pairwise, always in this order: the same sums give the same bits in every kernel of this file. */
VECGPU_FORCE_INLINE float sum_lanes(__m256 v)
{
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    quarter = _mm_add_ss(quarter, _mm_movehdup_ps(quarter));
    return _mm_cvtss_f32(quarter);
}

struct L2Step {
    VECGPU_FORCE_INLINE __m256 add(__m256 sum, __m256 a, __m256 b)
    {
        __m256 d = _mm256_sub_ps(a, b);
        return _mm256_fmadd_ps(d, d, sum);
    }
};

struct DotStep {
    VECGPU_FORCE_INLINE __m256 add(__m256 sum, __m256 a, __m256 b) { return _mm256_fmadd_ps(a, b, sum); }
};

struct L1Step {
    VECGPU_FORCE_INLINE __m256 add(__m256 sum, __m256 a, __m256 b)
    {
        return _mm256_add_ps(sum, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_sub_ps(a, b)));
    }
};

template <class Step, class Row>
VECGPU_FORCE_INLINE float reduce(const float *query, const void *stored, uint32_t n)
{
    Row row = Row::open(stored);
    __m256 s0 = _mm256_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        s0 = Step::add(s0, _mm256_loadu_ps(query + i), row.load(i));
        s1 = Step::add(s1, _mm256_loadu_ps(query + i + 8), row.load(i + 8));
        s2 = Step::add(s2, _mm256_loadu_ps(query + i + 16), row.load(i + 16));
        s3 = Step::add(s3, _mm256_loadu_ps(query + i + 24), row.load(i + 24));
    }
    for (; i + 8 <= n; i += 8)
        s0 = Step::add(s0, _mm256_loadu_ps(query + i), row.load(i));
    if (i < n)
        s1 = Step::add(s1, Float32Row{query}.load(i, n - i), row.load(i, n - i));
    return sum_lanes(_mm256_add_ps(_mm256_add_ps(s0, s1), _mm256_add_ps(s2, s3)));
}

template <class Row>
float l2_squared(const float *query, const void *row, uint32_t dimensions)
{
    return reduce<L2Step, Row>(query, row, dimensions);
}

template <class Row>
float dot(const float *query, const void *row, uint32_t dimensions)
{
    return reduce<DotStep, Row>(query, row, dimensions);
}

float l1(const float *a, const float *b, uint32_t dimensions)
{
    return reduce<L1Step, Float32Row>(a, b, dimensions);
}

/* Two chains each for dot and norm: four in all. */
template <class Row>
DotNorm dot_norm(const float *query, const void *stored, uint32_t n)
{
    Row row = Row::open(stored);
    __m256 d0 = _mm256_setzero_ps(), d1 = d0, n0 = d0, n1 = d0;
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256 r0 = row.load(i), r1 = row.load(i + 8);
        d0 = _mm256_fmadd_ps(_mm256_loadu_ps(query + i), r0, d0);
        d1 = _mm256_fmadd_ps(_mm256_loadu_ps(query + i + 8), r1, d1);
        n0 = _mm256_fmadd_ps(r0, r0, n0);
        n1 = _mm256_fmadd_ps(r1, r1, n1);
    }
    if (i + 8 <= n) {
        __m256 r0 = row.load(i);
        d0 = _mm256_fmadd_ps(_mm256_loadu_ps(query + i), r0, d0);
        n0 = _mm256_fmadd_ps(r0, r0, n0);
        i += 8;
    }
    if (i < n) {
        __m256 r1 = row.load(i, n - i);
        d1 = _mm256_fmadd_ps(Float32Row{query}.load(i, n - i), r1, d1);
        n1 = _mm256_fmadd_ps(r1, r1, n1);
    }
    return {sum_lanes(_mm256_add_ps(d0, d1)), sum_lanes(_mm256_add_ps(n0, n1))};
}

const Kernels table = {
    "avx2",
    {nullptr, l2_squared<Float32Row>, l2_squared<Float16Row>, l2_squared<BFloat16Row>, l2_squared<Int8Row>},
    {nullptr, dot<Float32Row>, dot<Float16Row>, dot<BFloat16Row>, dot<Int8Row>},
    {nullptr, dot_norm<Float32Row>, dot_norm<Float16Row>, dot_norm<BFloat16Row>, dot_norm<Int8Row>},
    l1,
};

} // namespace

const Kernels *avx2_table()
{
    return &table;
}

} // namespace vecgpu

#else

namespace vecgpu {

const Kernels *avx2_table()
{
    return nullptr;
}

} // namespace vecgpu

#endif
