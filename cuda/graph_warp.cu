/* graph_warp.cu: compiled once a storage, VECGPU_STORAGE names it. */
#include "graph_warp.cuh"

#include "graph_refine.cuh"

namespace vecgpu::cuda {

template <Storage kStorage>
void launch_graph_warp(const Machine &machine, const Job &job, uint32_t *ticket, cudaStream_t stream)
{
    if (job.ef <= kNarrowEf)
        with_kernel<kStorage, Precision::Rough, 4, 4>(job.rows.metric, job.rows.dimensions,
                                                      WarpLauncher<false>{machine, job, ticket, stream});
    else
        with_kernel<kStorage, Precision::Rough, 4, 8>(job.rows.metric, job.rows.dimensions,
                                                      WarpLauncher<true>{machine, job, ticket, stream});
}

template <Storage kStorage>
void launch_refine(const Machine &machine, const Job &job, const Job &walk, cudaStream_t stream)
{
    with_kernel<kStorage, Precision::Fine, 4, 8>(job.rows.metric, job.rows.dimensions,
                                                 RefineLauncher{machine, job, walk, stream});
}

template void launch_graph_warp<Storage::VECGPU_STORAGE>(const Machine &, const Job &, uint32_t *, cudaStream_t);
template void launch_refine<Storage::VECGPU_STORAGE>(const Machine &, const Job &, const Job &, cudaStream_t);

} // namespace vecgpu::cuda
