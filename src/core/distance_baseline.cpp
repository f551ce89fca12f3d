/*
 * distance_baseline.cpp: kernels in plain C++ for any CPU, the sums in double of the slow path, and the conversions.
 *
 * Sixteen running sums, so that the compiler may use whatever vector unit the target has without reordering additions.
 */
#include "core/distance_tables.h"

#include <cfloat>
#include <cmath>
#include <cstring>

namespace vecgpu {

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float half_to_float(uint16_t half)
{
    uint32_t sign = uint32_t(half & 0x8000) << 16;
    uint32_t magnitude = half & 0x7fff;
    if (magnitude >= 0x7c00)
        return from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    /* Moving exponent and mantissa into place divides by 2^112; the product is exact, subnormals included. */
    float value = from_bits(magnitude << 13) * 0x1p112f;
    return from_bits(sign | bits_of(value));
}

uint16_t float_to_half(float value)
{
    uint32_t bits = bits_of(value);
    uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    uint32_t magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000)
        return sign | 0x7e00;
    if (magnitude >= 0x477ff000) /* 65520: half way between 65504 and 65536, rounds to infinity */
        return sign | 0x7c00;
    if (magnitude < 0x38800000) { /* below 2^-14: a subnormal half */
        /* Adding 0.5 aligns the last bit of the sum with 2^-24, so that the FPU rounds to nearest even for us. */
        return sign | uint16_t(bits_of(from_bits(magnitude) + 0.5f) - 0x3f000000);
    }
    uint32_t odd = magnitude >> 13 & 1;
    return sign | uint16_t((magnitude - 0x38000000 + 0xfff + odd) >> 13);
}

uint16_t float_to_bfloat16(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

namespace {

struct Float32Row {
    const float *data;
    static Float32Row open(const void *row) { return {static_cast<const float *>(row)}; }
    float at(uint32_t i) const { return data[i]; }
};

struct Float16Row {
    const uint16_t *data;
    static Float16Row open(const void *row) { return {static_cast<const uint16_t *>(row)}; }
    float at(uint32_t i) const { return half_to_float(data[i]); }
};

struct BFloat16Row {
    const uint16_t *data;
    static BFloat16Row open(const void *row) { return {static_cast<const uint16_t *>(row)}; }
    float at(uint32_t i) const { return from_bits(uint32_t(data[i]) << 16); }
};

struct Int8Row {
    const int8_t *data;
    float scale;
    static Int8Row open(const void *row)
    {
        return {static_cast<const int8_t *>(row) + 4, *static_cast<const float *>(row)};
    }
    float at(uint32_t i) const { return scale * float(data[i]); }
};

constexpr uint32_t kLanes = 16;

float sum_lanes(float *sums)
{
    for (uint32_t width = kLanes / 2; width > 0; width /= 2)
        for (uint32_t j = 0; j < width; j++)
            sums[j] += sums[j + width];
    return sums[0];
}

struct L2Step {
    static float term(float a, float b) { return (a - b) * (a - b); }
};

struct DotStep {
    static float term(float a, float b) { return a * b; }
};

struct L1Step {
    static float term(float a, float b) { return __builtin_fabsf(a - b); }
};

template <class Step, class Row>
float reduce(const float *query, const void *stored, uint32_t n)
{
    Row row = Row::open(stored);
    float sums[kLanes] = {};
    uint32_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
        for (uint32_t j = 0; j < kLanes; j++)
            sums[j] += Step::term(query[i + j], row.at(i + j));
    for (uint32_t j = 0; i + j < n; j++)
        sums[j] += Step::term(query[i + j], row.at(i + j));
    return sum_lanes(sums);
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

template <class Row>
DotNorm dot_norm(const float *query, const void *stored, uint32_t n)
{
    Row row = Row::open(stored);
    float dots[kLanes] = {}, norms[kLanes] = {};
    uint32_t i = 0;
    for (; i + kLanes <= n; i += kLanes) {
        for (uint32_t j = 0; j < kLanes; j++) {
            float r = row.at(i + j);
            dots[j] += query[i + j] * r;
            norms[j] += r * r;
        }
    }
    for (uint32_t j = 0; i + j < n; j++) {
        float r = row.at(i + j);
        dots[j] += query[i + j] * r;
        norms[j] += r * r;
    }
    return {sum_lanes(dots), sum_lanes(norms)};
}

const Kernels table = {
    "baseline",
    {nullptr, l2_squared<Float32Row>, l2_squared<Float16Row>, l2_squared<BFloat16Row>, l2_squared<Int8Row>},
    {nullptr, dot<Float32Row>, dot<Float16Row>, dot<BFloat16Row>, dot<Int8Row>},
    {nullptr, dot_norm<Float32Row>, dot_norm<Float16Row>, dot_norm<BFloat16Row>, dot_norm<Int8Row>},
    l1,
};

template <class Row>
DoubleSums sums_of(const float *a, const void *stored, uint32_t n)
{
    Row row = Row::open(stored);
    DoubleSums sums = {0, 0, 0, 0, 0};
    for (uint32_t i = 0; i < n; i++) {
        double x = a[i], y = row.at(i), d = x - y;
        sums.dot += x * y;
        sums.norm2_a += x * x;
        sums.norm2_b += y * y;
        sums.l2_squared += d * d;
        sums.l1 += __builtin_fabs(d);
    }
    return sums;
}

} // namespace

const Kernels *baseline_table()
{
    return &table;
}

DoubleSums double_sums(Storage storage, const float *a, const void *b, uint32_t dimensions)
{
    switch (storage) {
    case Storage::Float32:
        break;
    case Storage::Float16:
        return sums_of<Float16Row>(a, b, dimensions);
    case Storage::BFloat16:
        return sums_of<BFloat16Row>(a, b, dimensions);
    case Storage::Int8:
        return sums_of<Int8Row>(a, b, dimensions);
    }
    return sums_of<Float32Row>(a, b, dimensions);
}

EncodeStatus encode_row(Storage storage, const float *vector, uint32_t dimensions, void *row, uint32_t *bad)
{
    size_t bytes = row_bytes(storage, dimensions);
    switch (storage) {
    case Storage::Float32:
        memcpy(row, vector, bytes);
        return EncodeStatus::Ok;
    case Storage::Float16:
    case Storage::BFloat16: {
        auto *out = static_cast<uint16_t *>(row);
        bool half = storage == Storage::Float16;
        uint16_t infinity = half ? 0x7c00 : 0x7f80;
        if (dimensions % 2)
            out[dimensions] = 0;
        for (uint32_t i = 0; i < dimensions; i++) {
            out[i] = half ? float_to_half(vector[i]) : float_to_bfloat16(vector[i]);
            if ((out[i] & 0x7fff) >= infinity) {
                if (bad)
                    *bad = i;
                return EncodeStatus::OutOfRange;
            }
        }
        return EncodeStatus::Ok;
    }
    case Storage::Int8: {
        float largest = 0;
        for (uint32_t i = 0; i < dimensions; i++)
            if (__builtin_fabsf(vector[i]) > largest)
                largest = __builtin_fabsf(vector[i]);
        float scale = largest / 127;
        if (!(scale * 127 <= FLT_MAX)) /* rounded up at the end of the range */
            scale = std::nextafter(scale, 0.0f);
        auto *out = static_cast<int8_t *>(row);
        memset(row, 0, bytes);
        memcpy(row, &scale, sizeof scale);
        if (!(scale > 0))
            return EncodeStatus::Ok;
        for (uint32_t i = 0; i < dimensions; i++) {
            /* A subnormal scale is rounded, so that the quotient may leave the range. */
            float steps = __builtin_rintf(vector[i] / scale);
            out[4 + i] = int8_t(steps > 127 ? 127 : steps < -127 ? -127 : steps);
        }
        return EncodeStatus::Ok;
    }
    }
    return EncodeStatus::Ok;
}

void decode_row(Storage storage, const void *row, uint32_t dimensions, float *vector)
{
    switch (storage) {
    case Storage::Float32:
        memcpy(vector, row, row_bytes(storage, dimensions));
        return;
    case Storage::Float16:
        for (uint32_t i = 0; i < dimensions; i++)
            vector[i] = Float16Row::open(row).at(i);
        return;
    case Storage::BFloat16:
        for (uint32_t i = 0; i < dimensions; i++)
            vector[i] = BFloat16Row::open(row).at(i);
        return;
    case Storage::Int8:
        for (uint32_t i = 0; i < dimensions; i++)
            vector[i] = Int8Row::open(row).at(i);
        return;
    }
}

} // namespace vecgpu
