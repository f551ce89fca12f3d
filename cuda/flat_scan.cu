/* flat_scan.cu: compiled once a storage, VECGPU_STORAGE names it. */
#include "flat_rescore.cuh"
#include "flat_scan.cuh"

namespace vecgpu::cuda {

template bool launch_scan<Storage::VECGPU_STORAGE>(const Machine &, const Job &, uint32_t, const float *,
                                                   const ScanWorkspace &, cudaStream_t);
template void launch_keys<Storage::VECGPU_STORAGE>(const Machine &, const Job &, uint32_t, uint32_t *, cudaStream_t);
template void launch_rescore<Storage::VECGPU_STORAGE>(const Machine &, const Job &, const FlatLists &, cudaStream_t);

} // namespace vecgpu::cuda
