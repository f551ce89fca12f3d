/*
 * convert.h: records of the pages into the mirror's arrays.
 */
#pragma once

#include "job.h"

namespace vecgpu::cuda {

struct RowTarget {
    uint4 *rows;
    float2 *side; /* null: not needed, see Rows */
    uint32_t pitch;
    uint32_t record_bytes;
    Storage storage;
    Metric metric;
};

struct LinkTarget {
    uint32_t *links;
    uint32_t degree;
    uint32_t record_bytes;
    uint32_t width; /* bytes of a cell */
};

/* `records` in device memory, record_bytes apart: to rows (lists) first .. first + count - 1. */
void launch_place_rows(const RowTarget &target, const void *records, uint32_t first, uint32_t count,
                       cudaStream_t stream);
void launch_place_links(const LinkTarget &target, const void *records, uint32_t first, uint32_t count,
                        cudaStream_t stream);

/* b &= a, both of `words` words in device memory. */
void launch_and_bits(const uint32_t *a, uint32_t *b, uint32_t words, cudaStream_t stream);

} // namespace vecgpu::cuda
