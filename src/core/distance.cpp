/*
 * distance.cpp: the choice of the kernel table, the values of the SQL operators, and keys.
 *
 * A float32 sum is trusted between kTiny and infinity. Below kTiny terms may have been lost to underflow (squares of
 * components under 1e-19 are subnormal or zero), at infinity something overflowed: then the sum is taken again in double,
 * whose exponent range holds 16,000 squares of any float32.
 */
#include "core/distance_tables.h"

#include <cfloat>
#include <cmath>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace vecgpu {

static constexpr float kTiny = 1e-30f;

/* ---- dispatch ---- */

#if defined(__x86_64__)
/* clang 14 has no name for it; whether the system saves the wide registers is asked together with AVX2. */
static bool cpu_has_f16c()
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}
#endif

int available_kernels(const Kernels *out[3])
{
    int n = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512 && avx512_table())
        out[n++] = avx512_table();
    if (avx2 && avx2_table())
        out[n++] = avx2_table();
#endif
    out[n++] = baseline_table();
    return n;
}

static const Kernels *best_table()
{
    const Kernels *tables[3];
    available_kernels(tables);
    return tables[0];
}

const Kernels &kernels()
{
    static const Kernels *const chosen = best_table();
    return *chosen;
}

/* ---- float32 sums with the slow path ---- */

/* False for NaN and infinity too. */
static bool trusted(float sum)
{
    return std::fabs(sum) >= kTiny && std::fabs(sum) <= FLT_MAX;
}

static double l2_value(const Kernels &table, const float *a, const float *b, uint32_t n)
{
    float sum = table.l2_squared[int(Storage::Float32)](a, b, n);
    if (trusted(sum))
        return std::sqrt(double(sum));
    return std::sqrt(double_sums(Storage::Float32, a, b, n).l2_squared);
}

static double dot_value(const Kernels &table, const float *a, const float *b, uint32_t n)
{
    float sum = table.dot[int(Storage::Float32)](a, b, n);
    if (trusted(sum))
        return sum;
    return double_sums(Storage::Float32, a, b, n).dot;
}

static double cosine_of(double dot, double norm2_a, double norm2_b)
{
    /* The square roots apart: the product of two squared norms may leave even the range of double. */
    double similarity = dot / (std::sqrt(norm2_a) * std::sqrt(norm2_b));
    if (similarity > 1)
        similarity = 1;
    else if (similarity < -1)
        similarity = -1;
    return 1 - similarity; /* NaN stays NaN */
}

/*
 * A dot product within the norms cannot have lost anything that counts: its terms that underflowed are below 1e-38,
 * the product of the norms is at least kTiny.
 */
static double cosine_value(const Kernels &table, Storage storage, const float *a, float norm2_a, const void *b,
                           uint32_t n)
{
    DotNorm sums = table.dot_norm[int(storage)](a, b, n);
    if (trusted(norm2_a) && trusted(sums.norm2) && std::fabs(sums.dot) <= FLT_MAX)
        return cosine_of(sums.dot, norm2_a, sums.norm2);
    DoubleSums exact = double_sums(storage, a, b, n);
    return cosine_of(exact.dot, exact.norm2_a, exact.norm2_b);
}

/* The same accumulation as for a stored row, so that cosine is symmetric to the last bit. */
static float norm2_of(const Kernels &table, const float *a, uint32_t n)
{
    return table.dot_norm[int(Storage::Float32)](a, a, n).norm2;
}

/* ---- SQL operators ---- */

double l2_distance(const float *a, const float *b, uint32_t dimensions)
{
    return l2_value(kernels(), a, b, dimensions);
}

double inner_product(const float *a, const float *b, uint32_t dimensions)
{
    return dot_value(kernels(), a, b, dimensions);
}

double cosine_distance(const float *a, const float *b, uint32_t dimensions)
{
    const Kernels &table = kernels();
    return cosine_value(table, Storage::Float32, a, norm2_of(table, a, dimensions), b, dimensions);
}

double l1_distance(const float *a, const float *b, uint32_t dimensions)
{
    float sum = kernels().l1(a, b, dimensions);
    /* Differences and sums underflow gradually, that is without loss; only overflow needs the slow path. */
    if (sum <= FLT_MAX)
        return sum;
    return double_sums(Storage::Float32, a, b, dimensions).l1;
}

/* ---- a query against stored rows ---- */

Query make_query(const float *vector, uint32_t dimensions, Metric metric, Storage storage)
{
    const Kernels &table = kernels();
    float norm2 = metric == Metric::Cosine ? norm2_of(table, vector, dimensions) : 0;
    return {vector, dimensions, metric, storage, norm2, &table};
}

/* The nearest finite float32; NaN: FLT_MAX. */
static float finite(double value)
{
    if (value < -double(FLT_MAX))
        return -FLT_MAX;
    return value <= double(FLT_MAX) ? float(value) : FLT_MAX;
}

float key(const Query &query, const void *row)
{
    int storage = int(query.storage);
    switch (query.metric) {
    case Metric::L2: {
        float sum = query.table->l2_squared[storage](query.vector, row, query.dimensions);
        return sum <= FLT_MAX ? sum : FLT_MAX;
    }
    case Metric::InnerProduct: {
        float sum = query.table->dot[storage](query.vector, row, query.dimensions);
        if (std::fabs(sum) <= FLT_MAX)
            return -sum;
        return finite(-double_sums(query.storage, query.vector, row, query.dimensions).dot);
    }
    case Metric::Cosine: {
        double distance = cosine_value(*query.table, query.storage, query.vector, query.norm2, row, query.dimensions);
        return distance <= 2 ? float(distance) : 2;
    }
    }
    return FLT_MAX;
}

double exact_distance(const Query &query, const void *row)
{
    const float *b = static_cast<const float *>(row);
    switch (query.metric) {
    case Metric::L2:
        return l2_value(*query.table, query.vector, b, query.dimensions);
    case Metric::InnerProduct:
        return -dot_value(*query.table, query.vector, b, query.dimensions);
    case Metric::Cosine:
        break;
    }
    return cosine_value(*query.table, Storage::Float32, query.vector, query.norm2, row, query.dimensions);
}

} // namespace vecgpu
