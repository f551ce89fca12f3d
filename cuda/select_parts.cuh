/*
 * select_parts.cuh: what the kernels of select.cu share: values in, words out.
 */
#pragma once

#include "block_select.cuh"
#include "job.h"

namespace vecgpu::cuda {

/* Where the answer of one row, or of a part of it, goes: words when there are parts to be merged. */
struct SelectOutput {
    float *keys;
    uint32_t *indices;
    Word *words;

    __device__ __forceinline__ void put(size_t at, Word word) const
    {
        if (words) {
            words[at] = word;
        } else {
            keys[at] = word == kNoWord ? INFINITY : key_of_word(word);
            indices[at] = slot_of_word(word);
        }
    }
};

__device__ __forceinline__ float nan_value()
{
    return __uint_as_float(0x7fffffff);
}

/* Four consecutive values; NaN beyond `end`. */
__device__ __forceinline__ float4 load_values(const float *row, uint32_t at, uint32_t end, bool aligned)
{
    if (aligned && at + 4 <= end)
        return __ldcs(reinterpret_cast<const float4 *>(row + at));
    float4 v;
    v.x = at < end ? row[at] : nan_value();
    v.y = at + 1 < end ? row[at + 1] : nan_value();
    v.z = at + 2 < end ? row[at + 2] : nan_value();
    v.w = at + 3 < end ? row[at + 3] : nan_value();
    return v;
}

/* Part `part` of `parts` of a row: columns first .. end - 1, first a multiple of 4. */
__device__ __forceinline__ void part_of(uint32_t columns, uint32_t parts, uint32_t part, uint32_t &first, uint32_t &end)
{
    const uint32_t each = ((columns + parts - 1) / parts + 3) / 4 * 4;
    first = min(columns, part * each);
    end = min(columns, first + each);
}

} // namespace vecgpu::cuda
