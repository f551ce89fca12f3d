/*
 * pair.h: the distance between two rows of a graph, and levels.
 *
 * A graph is built with a distance d(x, y) >= 0 that both ends agree on:
 *   L2            |x - y|^2
 *   Cosine        1 - cos(x, y)
 *   InnerProduct  |x' - y'|^2 where x' = (x, sqrt(M^2 - |x|^2)) and M is the largest norm
 * The last is the reduction of maximum inner product search to nearest neighbours (Bachrach et al. 2014, section 3.3;
 * Neyshabur & Srebro 2015): all x' lie on a sphere, where the order by distance to (q, 0) is the order by -q.x. On the raw
 * inner product, short rows are nobody's neighbours and nothing links to them. A row longer than M (inserted later) gets
 * 0 as its last component: it leaves the sphere, stays a valid point of the same space, and is found as one.
 *
 * What a row contributes besides its components is its "aux": Cosine 1 / |x|, or 0 where the norm's square leaves the
 * range of float32; InnerProduct the last component of x'; L2 nothing.
 */
#pragma once

#include "core/distance.h"

namespace vecgpu {

struct PairMetric {
    Metric metric;
    Storage storage;
    uint32_t dimensions;
    float max_norm; /* M; only for InnerProduct */
    const Kernels *table;
};

PairMetric make_pair_metric(Metric metric, Storage storage, uint32_t dimensions, float max_norm);

/* `vector` is the decoded row; any float32 vector of the same dimension does, it only feeds the kernel. */
float pair_aux(const PairMetric &pair, const float *vector, const void *row);

/* d(a, b) as float32; never NaN, never below 0. a is decoded (decode_row; a Float32 row is its own decoding). */
float pair_distance(const PairMetric &pair, const float *a, float aux_a, const void *b, float aux_b);

struct PairBounds {
    float twin; /* distances up to this may be those of two byte-equal rows */
    float mate; /* distances up to this cannot be told from zero */
};
PairBounds pair_bounds(const PairMetric &pair, const float *vector, const void *row);

/* floor(-ln(U) / ln(m)), at most kMaxLevel, with U from a hash of (seed, slot): mL = 1 / ln(M), section 4.1 of the paper. */
int random_level(uint64_t seed, uint32_t slot, uint32_t m);

/* The largest norm of rows [0, n), for PairMetric::max_norm. `scratch` holds `dimensions` floats. */
float largest_norm(Storage storage, const void *rows, uint32_t n, uint32_t dimensions, float *scratch);

} // namespace vecgpu
