/*
 * pair.cpp: see pair.h.
 */
#include "core/pair.h"
#include "core/distance_tables.h"

#include <cfloat>
#include <cmath>

namespace vecgpu {

static constexpr float kTiny = 1e-30f;

PairMetric make_pair_metric(Metric metric, Storage storage, uint32_t dimensions, float max_norm)
{
    return {metric, storage, dimensions, max_norm, &kernels()};
}

float pair_aux(const PairMetric &pair, const float *vector, const void *row)
{
    if (pair.metric == Metric::L2)
        return 0;
    float norm2 = pair.table->dot_norm[int(pair.storage)](vector, row, pair.dimensions).norm2;
    if (pair.metric == Metric::Cosine)
        return norm2 >= kTiny && norm2 <= FLT_MAX ? float(1 / std::sqrt(double(norm2))) : 0;
    double rest = double(pair.max_norm) * pair.max_norm - norm2;
    return rest > 0 ? float(std::sqrt(rest)) : 0;
}

float pair_distance(const PairMetric &pair, const float *a, float aux_a, const void *b, float aux_b)
{
    int storage = int(pair.storage);
    switch (pair.metric) {
    case Metric::L2: {
        float sum = pair.table->l2_squared[storage](a, b, pair.dimensions);
        return sum <= FLT_MAX ? sum : FLT_MAX;
    }
    case Metric::InnerProduct: {
        /* As a distance, not as M^2 - x.y - ..., which would cancel for rows much shorter than M. */
        float d = aux_a - aux_b;
        float sum = pair.table->l2_squared[storage](a, b, pair.dimensions) + d * d;
        return sum <= FLT_MAX ? sum : FLT_MAX;
    }
    case Metric::Cosine:
        break;
    }
    if (aux_a > 0 && aux_b > 0) {
        float similarity = pair.table->dot[storage](a, b, pair.dimensions) * aux_a * aux_b;
        return similarity < 1 ? 1 - similarity : 0;
    }
    DoubleSums sums = double_sums(pair.storage, a, b, pair.dimensions);
    double distance = 1 - sums.dot / (std::sqrt(sums.norm2_a) * std::sqrt(sums.norm2_b));
    if (!(distance <= 2))
        return 2;
    return distance > 0 ? float(distance) : 0;
}

PairBounds pair_bounds(const PairMetric &pair, const float *vector, const void *row)
{
    /* 1 - cos of parallel vectors is off by some roundings of float32, each 6e-8. */
    if (pair.metric == Metric::Cosine)
        return {1e-5f, 1e-6f};
    /*
     * Equal rows need not be at 0: a kernel may fuse the decoding of a row into the subtraction, without the rounding of
     * decode_row. A relative difference of 3e-7 is some units in the last place.
     */
    float norm2 = pair.table->dot_norm[int(pair.storage)](vector, row, pair.dimensions).norm2;
    if (!(norm2 <= FLT_MAX))
        return {FLT_MAX, FLT_MIN};
    return {1e-6f * norm2, 1e-13f * norm2 > FLT_MIN ? 1e-13f * norm2 : FLT_MIN};
}

int random_level(uint64_t seed, uint32_t slot, uint32_t m)
{
    /* splitmix64, Steele et al. 2014 */
    uint64_t z = seed + (uint64_t(slot) + 1) * 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    double u = double((z >> 11) + 1) * 0x1p-53; /* (0, 1] */
    double level = std::floor(-std::log(u) / std::log(double(m < 2 ? 2 : m)));
    return level < kMaxLevel ? int(level) : kMaxLevel;
}

float largest_norm(Storage storage, const void *rows, uint32_t n, uint32_t dimensions, float *scratch)
{
    const Kernels &table = kernels();
    size_t bytes = row_bytes(storage, dimensions);
    double largest = 0;
    for (uint32_t i = 0; i < dimensions; i++)
        scratch[i] = 0;
    for (uint32_t i = 0; i < n; i++) {
        const void *row = static_cast<const char *>(rows) + i * bytes;
        double norm2 = table.dot_norm[int(storage)](scratch, row, dimensions).norm2;
        if (!(norm2 <= FLT_MAX))
            norm2 = double_sums(storage, scratch, row, dimensions).norm2_b;
        if (norm2 > largest)
            largest = norm2;
    }
    double norm = std::sqrt(largest);
    return norm < FLT_MAX ? float(norm) : FLT_MAX;
}

} // namespace vecgpu
