/*
 * launch.h: how kernels are launched. Attributes are set once a kernel and device, not with every launch.
 */
#pragma once

#include "status.h"

#include <atomic>
#include <mutex>

namespace vecgpu::cuda {

constexpr int kMaxDevices = 64;

/*
 * Lets `kKernel` have `bytes` of dynamic shared memory on device `ordinal`; kCarveout: how much of the SM's memory is
 * shared memory, the rest is L1 cache, which loads in flight need room in.
 */
template <auto kKernel, int kCarveout = cudaSharedmemCarveoutMaxShared>
void allow_shared(size_t bytes, int ordinal)
{
    static std::atomic<size_t> allowed[kMaxDevices];
    static std::mutex changing; /* or a smaller request could take back what a larger one was just given */
    std::atomic<size_t> &mine = allowed[ordinal % kMaxDevices];
    if (mine.load(std::memory_order_acquire) > bytes)
        return;
    std::lock_guard<std::mutex> lock(changing);
    if (mine.load(std::memory_order_relaxed) > bytes)
        return;
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
          "shared memory of a kernel");
    check(cudaFuncSetAttribute(kKernel, cudaFuncAttributePreferredSharedMemoryCarveout, kCarveout),
          "carveout of a kernel");
    mine.store(bytes + 1, std::memory_order_release);
}

/* `clusters` clusters of `blocks` blocks each (1: no clusters, on any chip) of `threads` threads and `bytes` of shared memory. */
template <class Kernel, class... Arguments>
void launch_clusters(Kernel kernel, uint32_t clusters, uint32_t blocks, uint32_t threads, size_t bytes,
                     cudaStream_t stream, const char *what, const Arguments &...arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(clusters * blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = blocks;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = blocks > 1 ? 1 : 0;
    check(cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

} // namespace vecgpu::cuda
