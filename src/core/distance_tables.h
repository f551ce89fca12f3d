/*
 * distance_tables.h: what the kernel files offer to distance.cpp.
 *
 * No inline functions here: distance_avx2.cpp and distance_avx512.cpp are compiled for newer CPUs than the rest, and the
 * linker keeps one copy of every inline function, possibly theirs.
 */
#pragma once

#include "core/distance.h"

namespace vecgpu {

/* Null where the compiler was not told to use the instruction set. They do not look at the CPU. */
const Kernels *avx512_table();
const Kernels *avx2_table();
const Kernels *baseline_table();

/* Sums of the two rows in double, element by element in order: the slow path. */
struct DoubleSums {
    double dot;
    double norm2_a;
    double norm2_b;
    double l2_squared;
    double l1;
};
DoubleSums double_sums(Storage storage, const float *a, const void *b, uint32_t dimensions);

float half_to_float(uint16_t half);
uint16_t float_to_half(float value);     /* to nearest even; beyond the range: infinity */
uint16_t float_to_bfloat16(float value); /* likewise */

} // namespace vecgpu
