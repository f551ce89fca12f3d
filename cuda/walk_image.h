/*
 * walk_image.h: rows a second time, in one byte a component, for graph searches to walk on.
 *
 * A walk only has to find candidates, and its time is that of reading rows. So the rows of a mirror with a graph are
 * kept as int8 too, each with a scale of its own (a quarter of float32), the rough kernel of rows.cuh walks on these,
 * and the best of the list are computed again from the rows themselves (launch_refine()). Whether the bytes are fine
 * enough to tell neighbours apart is measured at commits; if not, searches walk on the rows.
 */
#pragma once

#include "buffer.h"
#include "job.h"

#include "engine/device.h"

namespace vecgpu::cuda {

struct WalkImage {
    bool enabled = false;
    uint32_t pitch = 0;
    DeviceBuffer<uint4> rows;
    DeviceBuffer<float2> side;

    /* The image as the rows of a mirror of int8. */
    Rows view(const Rows &of) const;
};

/* 0: mirrors of this shape have none. */
uint64_t walk_image_bytes(const MirrorShape &shape);
void walk_image_create(WalkImage *image, const MirrorShape &shape, cudaStream_t stream);

/* Images rows first .. first + count - 1, which are in place. */
void walk_image_rows(const WalkImage &image, Storage storage, const Rows &rows, uint32_t first, uint32_t count,
                     cudaStream_t stream);

/*
 * Whether a walk on the image tells neighbours apart, by a sample of nodes: `count` slots in device memory. Blocks.
 */
bool walk_image_serves(const WalkImage &image, Storage storage, const Rows &rows, const uint32_t *links,
                       uint32_t degree, uint32_t nodes, const uint32_t *slots, uint32_t count, cudaStream_t stream);

/* How many of a list's best are computed again for k hits. */
constexpr uint32_t refined_hits(uint32_t k, uint32_t ef)
{
    const uint32_t wide = (k + k / 4 + 8 + 31) / 32 * 32;
    return wide < ef ? wide : ef;
}

} // namespace vecgpu::cuda
