/*
 * distance.h: distance kernels, chosen once for the CPU at hand (AVX-512, AVX2 + FMA + F16C, baseline x86-64 or plain C++).
 *
 * PostgreSQL-free, no allocation, no exceptions. The SQL operators, the graph walk, the builder and the final
 * ordering of an index scan all call these kernels, so that a distance is the same number to the last bit
 * wherever it is computed in one process.
 *
 * "key" below: the value that the index orders by, see Metric. Lower is nearer.
 */
#pragma once

#include "core/types.h"

namespace vecgpu {

/* Sums over d float32 elements; accumulated in float32 in the lane order of the CPU's kernel. */
struct DotNorm {
    float dot;   /* sum of query[i] * row[i] */
    float norm2; /* sum of row[i] * row[i] */
};

/*
 * One table per instruction set. `row` is a stored row (row_bytes()), 4-byte aligned; `query` is float32, 4-byte aligned.
 * Index [int(storage)] with storage 1..4; entry 0 is null.
 */
struct Kernels {
    const char *name; /* "avx512", "avx2", "baseline" */
    float (*l2_squared[5])(const float *query, const void *row, uint32_t dimensions);
    float (*dot[5])(const float *query, const void *row, uint32_t dimensions);
    DotNorm (*dot_norm[5])(const float *query, const void *row, uint32_t dimensions);
    float (*l1)(const float *a, const float *b, uint32_t dimensions);
};

/* The best table for this CPU; thread-safe; the choice never changes in a process. */
const Kernels &kernels();

/* All tables that this CPU can run, best first; for tests. Returns how many (at most 3). */
int available_kernels(const Kernels *out[3]);

/* ---- what the SQL operators return (float8). The first two arguments are float32 arrays. ---- */

/*
 * When a float32 sum overflows or underflows (not finite, or below 1e-30 with a non-zero element), these recompute
 * in double, so that vectors scaled by 1e-30 or 1e30 still have right distances.
 */
double l2_distance(const float *a, const float *b, uint32_t dimensions);     /* sqrt of sum of squared differences */
double inner_product(const float *a, const float *b, uint32_t dimensions);   /* positive inner product */
double cosine_distance(const float *a, const float *b, uint32_t dimensions); /* in [0, 2]; NaN if either norm is 0 */
double l1_distance(const float *a, const float *b, uint32_t dimensions);

/* ---- a query against stored rows ---- */

struct Query {
    const float *vector; /* not owned */
    uint32_t dimensions;
    Metric metric;
    Storage storage;
    float norm2; /* of the query; only for cosine */
    const Kernels *table;
};

Query make_query(const float *vector, uint32_t dimensions, Metric metric, Storage storage);

/*
 * The key of `row` for this query as float32; never NaN: a sum that overflowed becomes FLT_MAX and an undefined
 * cosine (zero norm) becomes 2.
 */
float key(const Query &query, const void *row);

/*
 * The value that the SQL operator of the metric returns for (query, row) when storage is Float32, bit for bit
 * l2_distance / -inner_product / cosine_distance. Not for other storages.
 */
double exact_distance(const Query &query, const void *row);

/* ---- conversion between float32 and stored rows ---- */

enum class EncodeStatus {
    Ok,
    OutOfRange /* a finite component rounds to infinity: float16 from 65520, bfloat16 near FLT_MAX */
};

/* Writes row_bytes() bytes, padding zeroed. On OutOfRange *bad (if not null) is the index of the component. */
EncodeStatus encode_row(Storage storage, const float *vector, uint32_t dimensions, void *row, uint32_t *bad);
void decode_row(Storage storage, const void *row, uint32_t dimensions, float *vector);

} // namespace vecgpu
