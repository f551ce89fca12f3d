/*
 * walk_image.cu: see walk_image.h.
 */
#include "walk_image.h"

#include "components.cuh"

#include <algorithm>
#include <cstdlib>
#include <vector>

namespace vecgpu::cuda {

namespace {

/* The share of a neighbour's distance that rounding may move it by. */
constexpr float kMostError = 1 / 64.f;

/* Rows begin on sectors (32 bytes) of memory. */
uint32_t image_pitch(uint32_t dimensions)
{
    return (row_pieces(Storage::Int8, dimensions) + 1) / 2 * 2;
}

/* One warp a row. */
__global__ void __launch_bounds__(128) walk_rows_kernel(Storage storage, const Rows rows, uint32_t first,
                                                        uint32_t count, uint32_t pitch, uint4 *image, float2 *side)
{
    const int lane = threadIdx.x & 31;
    const uint32_t i = blockIdx.x * 4 + threadIdx.x / 32;
    if (i >= count)
        return;
    const uint32_t slot = first + i;
    float largest = 0;
    for (uint32_t d = lane; d < rows.dimensions; d += 32)
        largest = fmaxf(largest, fabsf(component(storage, rows, slot, d)));
    for (int offset = 16; offset; offset >>= 1)
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, offset));
    const float scale = largest / 127;
    uint32_t *out = reinterpret_cast<uint32_t *>(image + static_cast<size_t>(slot) * pitch);
    double norm2 = 0;
    for (uint32_t w = lane; w < pitch * 4; w += 32) {
        uint32_t bytes = 0;
        for (uint32_t b = 0; b < 4; b++) {
            const uint32_t d = w * 4 + b;
            const float x = d < rows.dimensions ? component(storage, rows, slot, d) : 0.f;
            const int v = scale > 0 ? max(-127, min(127, __float2int_rn(x / scale))) : 0;
            bytes |= static_cast<uint32_t>(v & 255) << (8 * b);
        }
        out[w] = bytes;
        norm2 += __dp4a(static_cast<int>(bytes), static_cast<int>(bytes), 0);
    }
    for (int offset = 16; offset; offset >>= 1)
        norm2 += __shfl_xor_sync(kFullWarp, norm2, offset);
    norm2 *= static_cast<double>(scale) * scale;
    if (lane == 0)
        side[slot] = make_float2(scale, rows.metric != Metric::Cosine ? static_cast<float>(norm2)
                                        : norm2 > 0                   ? static_cast<float>(1 / sqrt(norm2))
                                                                      : 0.f);
}

/*
 * One warp a node: what rounding the components of its row does to the distance to its nearest neighbour that is not
 * equal, as a share of it. NaN: it has none, or there is no such node.
 */
__global__ void __launch_bounds__(128)
    walk_error_kernel(Storage storage, const Rows rows, const float2 *side, const uint32_t *links, uint32_t degree,
                      uint32_t nodes, const uint32_t *slots, uint32_t count, float *errors)
{
    const int lane = threadIdx.x & 31;
    const uint32_t i = blockIdx.x * 4 + threadIdx.x / 32;
    if (i >= count)
        return;
    const uint32_t slot = slots[i];
    if (slot >= nodes) {
        if (lane == 0)
            errors[i] = __uint_as_float(0x7fffffff);
        return;
    }
    auto factor_of = [&](uint32_t s) { return rows.metric == Metric::Cosine ? rows.side[s].y : 1.f; };
    const float factor = factor_of(slot);
    float nearest = INFINITY;
    for (uint32_t l = 0; l < degree; l++) {
        const uint32_t other = links[static_cast<size_t>(slot) * degree + l];
        if (other >= nodes)
            continue;
        const float theirs = factor_of(other);
        float sum = 0;
        for (uint32_t d = lane; d < rows.dimensions; d += 32) {
            const float x = component(storage, rows, slot, d) * factor - component(storage, rows, other, d) * theirs;
            sum = fmaf(x, x, sum);
        }
        for (int offset = 16; offset; offset >>= 1)
            sum += __shfl_xor_sync(kFullWarp, sum, offset);
        if (sum > 0)
            nearest = fminf(nearest, sum);
    }
    /* Rounding to steps of s is an error of s / sqrt(12) a component, and that along any direction. */
    if (lane == 0)
        errors[i] =
            nearest < INFINITY ? side[slot].x * factor * sqrtf(1 / 12.f) / sqrtf(nearest) : __uint_as_float(0x7fffffff);
}

} // namespace

Rows WalkImage::view(const Rows &of) const
{
    Rows view = of;
    view.data = rows.data();
    view.side = side.data();
    view.pitch = pitch;
    view.pieces = row_pieces(Storage::Int8, of.dimensions);
    return view;
}

uint64_t walk_image_bytes(const MirrorShape &shape)
{
    /* For measuring without, and where memory counts for more: the same walks on the rows. */
    static const bool off = getenv("VECGPU_WALK_IMAGE") && atoi(getenv("VECGPU_WALK_IMAGE")) == 0;
    if (off || shape.kind != IndexKind::Hnsw || shape.storage == Storage::Int8)
        return 0;
    return static_cast<uint64_t>(shape.nodes) * (image_pitch(shape.dimensions) * sizeof(uint4) + sizeof(float2));
}

void walk_image_create(WalkImage *image, const MirrorShape &shape, cudaStream_t stream)
{
    image->enabled = walk_image_bytes(shape) > 0;
    if (!image->enabled)
        return;
    image->pitch = image_pitch(shape.dimensions);
    image->rows.allocate(static_cast<size_t>(shape.nodes) * image->pitch);
    image->side.allocate(shape.nodes);
    check(cudaMemsetAsync(image->rows.data(), 0, image->rows.count() * sizeof(uint4), stream), "walk image");
    check(cudaMemsetAsync(image->side.data(), 0, image->side.count() * sizeof(float2), stream), "walk image");
}

void walk_image_rows(const WalkImage &image, Storage storage, const Rows &rows, uint32_t first, uint32_t count,
                     cudaStream_t stream)
{
    walk_rows_kernel<<<(count + 3) / 4, 128, 0, stream>>>(storage, rows, first, count, image.pitch, image.rows.data(),
                                                          image.side.data());
    check_launch("walk_rows");
}

bool walk_image_serves(const WalkImage &image, Storage storage, const Rows &rows, const uint32_t *links,
                       uint32_t degree, uint32_t nodes, const uint32_t *slots, uint32_t count, cudaStream_t stream)
{
    if (count == 0)
        return false;
    DeviceBuffer<float> errors(count);
    walk_error_kernel<<<(count + 3) / 4, 128, 0, stream>>>(storage, rows, image.side.data(), links, degree, nodes,
                                                           slots, count, errors.data());
    check_launch("walk_error");
    std::vector<float> host(count);
    check(cudaMemcpyAsync(host.data(), errors.data(), count * sizeof(float), cudaMemcpyDeviceToHost, stream),
          "walk image");
    check(cudaStreamSynchronize(stream), "walk image");
    std::erase_if(host, [](float x) { return x != x; });
    if (host.empty())
        return false;
    std::nth_element(host.begin(), host.begin() + host.size() / 2, host.end());
    return host[host.size() / 2] <= kMostError;
}

} // namespace vecgpu::cuda
