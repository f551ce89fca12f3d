/* graph_mail.cu: compiled once a storage, VECGPU_STORAGE names it. */
#include "graph_mail.cuh"

namespace vecgpu::cuda {

template <Storage kStorage>
bool launch_graph_mail(const Machine &machine, const Job &job, const Job &walk, Storage storage, BlockShape shape,
                       const MailJob &mail, cudaStream_t stream)
{
    bool fits = false;
    with_kernel<kStorage, Precision::Rough, 4, 8>(
        job.rows.metric, job.rows.dimensions, MailLauncher{machine, job, walk, storage, mail, shape, stream, &fits});
    return fits;
}

template bool launch_graph_mail<Storage::VECGPU_STORAGE>(const Machine &, const Job &, const Job &, Storage, BlockShape,
                                                         const MailJob &, cudaStream_t);

} // namespace vecgpu::cuda
