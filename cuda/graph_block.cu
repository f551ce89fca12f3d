/* graph_block.cu: compiled once a storage, VECGPU_STORAGE names it. */
#include "graph_block.cuh"

namespace vecgpu::cuda {

template <Storage kStorage>
bool launch_graph_block(const Machine &machine, const Job &job, const Job &walk, Storage storage, BlockShape shape,
                        cudaStream_t stream)
{
    bool fits = false;
    if (shape.threads > 128)
        with_kernel<kStorage, Precision::Rough, 4, 8>(
            job.rows.metric, job.rows.dimensions,
            BlockLauncher<true>{machine, job, walk, storage, shape, stream, &fits});
    else
        with_kernel<kStorage, Precision::Rough, 4, 4>(
            job.rows.metric, job.rows.dimensions,
            BlockLauncher<false>{machine, job, walk, storage, shape, stream, &fits});
    return fits;
}

template bool launch_graph_block<Storage::VECGPU_STORAGE>(const Machine &, const Job &, const Job &, Storage,
                                                          BlockShape, cudaStream_t);

} // namespace vecgpu::cuda
