/*
 * select.h: the k smallest values of each row of a matrix.
 *
 * Ascending by (value, column); NaN is never selected, infinities are values like others. Three ways:
 *   Threshold  a block a row (or part of one), for one long row the whole device, holds values in registers, bounds the
 *              k-th by minima of groups, filters, prunes, sorts. The default.
 *   Warp       WarpSelect (Johnson, Douze, Jegou 2017): a warp a row, thread queues and a warp queue in registers,
 *              exact threshold.
 *   Radix      radix_select.cu, one row at a time over the whole device: any k up to kMaxHits.
 */
#pragma once

#include "buffer.h"
#include "job.h"

namespace vecgpu::cuda {

enum class SelectWay { Threshold, Warp, Radix };

struct SelectArguments {
    const float *values; /* rows x columns */
    uint32_t rows;
    uint32_t columns;
    uint32_t k;        /* 1 .. kMaxSelect; Radix: .. kMaxHits */
    float *keys;       /* rows x k; +inf where a row has too few */
    uint32_t *indices; /* rows x k; kNone there */
};

constexpr uint32_t kMaxSelect = 1024;

/* Grows to what a call needs; see launch_select(). */
struct SelectWorkspace {
    DeviceBuffer<Word> words;
    DeviceBuffer<uint32_t> orders;
    DeviceBuffer<RadixState> radix;
    DeviceBuffer<Hit> hits;
    DeviceBuffer<uint32_t> found;
};

/* The way that measures best (README.md). */
SelectWay select_way(uint32_t k);

/* Asynchronous, but for the growth of the workspace. Throws Failure: BadRequest for k out of range. */
void launch_select(const Machine &machine, SelectWay way, const SelectArguments &arguments, SelectWorkspace *workspace,
                   cudaStream_t stream);

} // namespace vecgpu::cuda
