/*
 * distance_avx512.cpp: kernels for AVX-512 F, BW, VL and DQ. Only intrinsics and internal linkage, see distance_tables.h.
 *
 * Four accumulators of 16 lanes hide the latency of FMA (4 cycles, 1 to 2 a cycle). The tail is one masked step, so every
 * dimension takes the same path and no element is read beyond the row.
 */
#include "core/distance_tables.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)

/* GCC 12's own header warns about its "undefined" operands (GCC bug 105593). */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

namespace vecgpu {
namespace {

#define VECGPU_FORCE_INLINE static inline __attribute__((always_inline))

struct Float32Row {
    const float *data;
    VECGPU_FORCE_INLINE Float32Row open(const void *row) { return {static_cast<const float *>(row)}; }
    __attribute__((always_inline)) __m512 load(uint32_t i) const { return _mm512_loadu_ps(data + i); }
    __attribute__((always_inline)) __m512 load(uint32_t i, __mmask16 mask) const
    {
        return _mm512_maskz_loadu_ps(mask, data + i);
    }
};

struct Float16Row {
    const uint16_t *data;
    VECGPU_FORCE_INLINE Float16Row open(const void *row) { return {static_cast<const uint16_t *>(row)}; }
    __attribute__((always_inline)) __m512 load(uint32_t i) const
    {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(data + i)));
    }
    __attribute__((always_inline)) __m512 load(uint32_t i, __mmask16 mask) const
    {
        return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, data + i));
    }
};

struct BFloat16Row {
    const uint16_t *data;
    VECGPU_FORCE_INLINE BFloat16Row open(const void *row) { return {static_cast<const uint16_t *>(row)}; }
    VECGPU_FORCE_INLINE __m512 widen(__m256i half)
    {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    __attribute__((always_inline)) __m512 load(uint32_t i) const
    {
        return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(data + i)));
    }
    __attribute__((always_inline)) __m512 load(uint32_t i, __mmask16 mask) const
    {
        return widen(_mm256_maskz_loadu_epi16(mask, data + i));
    }
};

struct Int8Row {
    const int8_t *data;
    __m512 scale;
    VECGPU_FORCE_INLINE Int8Row open(const void *row)
    {
        return {static_cast<const int8_t *>(row) + 4, _mm512_set1_ps(*static_cast<const float *>(row))};
    }
    __attribute__((always_inline)) __m512 widen(__m128i bytes) const
    {
        return _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)));
    }
    __attribute__((always_inline)) __m512 load(uint32_t i) const
    {
        return widen(_mm_loadu_si128(reinterpret_cast<const __m128i *>(data + i)));
    }
    __attribute__((always_inline)) __m512 load(uint32_t i, __mmask16 mask) const
    {
        return widen(_mm_maskz_loadu_epi8(mask, data + i));
    }
};

/* Pairwise, always in this order: the same sums give the same bits in every kernel of this file. */
VECGPU_FORCE_INLINE float sum_lanes(__m512 v)
{
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 quarter = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    quarter = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
    quarter = _mm_add_ss(quarter, _mm_movehdup_ps(quarter));
    return _mm_cvtss_f32(quarter);
}

struct L2Step {
    VECGPU_FORCE_INLINE __m512 add(__m512 sum, __m512 a, __m512 b)
    {
        __m512 d = _mm512_sub_ps(a, b);
        return _mm512_fmadd_ps(d, d, sum);
    }
};

struct DotStep {
    VECGPU_FORCE_INLINE __m512 add(__m512 sum, __m512 a, __m512 b) { return _mm512_fmadd_ps(a, b, sum); }
};

struct L1Step {
    VECGPU_FORCE_INLINE __m512 add(__m512 sum, __m512 a, __m512 b)
    {
        return _mm512_add_ps(sum, _mm512_abs_ps(_mm512_sub_ps(a, b)));
    }
};

template <class Step, class Row>
VECGPU_FORCE_INLINE float reduce(const float *query, const void *stored, uint32_t n)
{
    Row row = Row::open(stored);
    __m512 s0 = _mm512_setzero_ps(), s1 = s0, s2 = s0, s3 = s0;
    uint32_t i = 0;
    for (; i + 64 <= n; i += 64) {
        s0 = Step::add(s0, _mm512_loadu_ps(query + i), row.load(i));
        s1 = Step::add(s1, _mm512_loadu_ps(query + i + 16), row.load(i + 16));
        s2 = Step::add(s2, _mm512_loadu_ps(query + i + 32), row.load(i + 32));
        s3 = Step::add(s3, _mm512_loadu_ps(query + i + 48), row.load(i + 48));
    }
    if (i + 32 <= n) {
        s0 = Step::add(s0, _mm512_loadu_ps(query + i), row.load(i));
        s1 = Step::add(s1, _mm512_loadu_ps(query + i + 16), row.load(i + 16));
        i += 32;
    }
    if (i + 16 <= n) {
        s2 = Step::add(s2, _mm512_loadu_ps(query + i), row.load(i));
        i += 16;
    }
    if (i < n) {
        __mmask16 mask = static_cast<__mmask16>((1u << (n - i)) - 1);
        s3 = Step::add(s3, _mm512_maskz_loadu_ps(mask, query + i), row.load(i, mask));
    }
    return sum_lanes(_mm512_add_ps(_mm512_add_ps(s0, s1), _mm512_add_ps(s2, s3)));
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
    __m512 d0 = _mm512_setzero_ps(), d1 = d0, n0 = d0, n1 = d0;
    uint32_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m512 r0 = row.load(i), r1 = row.load(i + 16);
        d0 = _mm512_fmadd_ps(_mm512_loadu_ps(query + i), r0, d0);
        d1 = _mm512_fmadd_ps(_mm512_loadu_ps(query + i + 16), r1, d1);
        n0 = _mm512_fmadd_ps(r0, r0, n0);
        n1 = _mm512_fmadd_ps(r1, r1, n1);
    }
    if (i + 16 <= n) {
        __m512 r0 = row.load(i);
        d0 = _mm512_fmadd_ps(_mm512_loadu_ps(query + i), r0, d0);
        n0 = _mm512_fmadd_ps(r0, r0, n0);
        i += 16;
    }
    if (i < n) {
        __mmask16 mask = static_cast<__mmask16>((1u << (n - i)) - 1);
        __m512 r1 = row.load(i, mask);
        d1 = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, query + i), r1, d1);
        n1 = _mm512_fmadd_ps(r1, r1, n1);
    }
    return {sum_lanes(_mm512_add_ps(d0, d1)), sum_lanes(_mm512_add_ps(n0, n1))};
}

const Kernels table = {
    "avx512",
    {nullptr, l2_squared<Float32Row>, l2_squared<Float16Row>, l2_squared<BFloat16Row>, l2_squared<Int8Row>},
    {nullptr, dot<Float32Row>, dot<Float16Row>, dot<BFloat16Row>, dot<Int8Row>},
    {nullptr, dot_norm<Float32Row>, dot_norm<Float16Row>, dot_norm<BFloat16Row>, dot_norm<Int8Row>},
    l1,
};

} // namespace

const Kernels *avx512_table()
{
    return &table;
}

} // namespace vecgpu

#else

namespace vecgpu {

const Kernels *avx512_table()
{
    return nullptr;
}

} // namespace vecgpu

#endif
