/*
 * graph_mail.cuh: search of layer 0 by clusters that take their queries from mailboxes (resident.h): the form for few
 * queries. The search itself is that of graph_block.cuh.
 *
 * The first block looks at the mailbox and sends the query, or the word that it is time to leave, to the others
 * (receive_mail()). The search has barriers of the cluster, so no block is more than one query behind.
 */
#pragma once

#include "graph_block.cuh"
#include "graph_mail.h"
#include "mailbox.cuh"

namespace vecgpu::cuda {

constexpr int kMailThreads = 512;

/* Words of shared memory beyond those of the search: a multiple of 4. */
__host__ __device__ constexpr uint32_t graph_mail_words(uint32_t dimensions, uint32_t k)
{
    return 2 * mail_place(dimensions) + (2 * k + 3) / 4 * 4;
}

template <class Kernel, int kRegisters>
__global__ void __launch_bounds__(kMailThreads, 1)
    graph_mail_kernel(const __grid_constant__ BlockArguments given, const __grid_constant__ MailJob job,
                      uint32_t blocks)
{
    extern __shared__ __align__(16) uint32_t dynamic[];
    __shared__ MailDesk desk;
    __shared__ uint32_t found;
    const uint32_t dimensions = given.graph.rows.dimensions;
    uint32_t *places = dynamic + graph_block_words(Kernel::storage, given.graph.rows.pieces, given.graph.k,
                                                   given.graph.bits != nullptr, given.graph.parents, given.graph.degree,
                                                   blocks, WarpList<kRegisters>::kCapacity, kMailThreads);
    uint32_t *hits = places + 2 * mail_place(dimensions);
    BlockArguments arguments = given;
    arguments.graph.hits = reinterpret_cast<Hit *>(hits);
    arguments.graph.counts = &found;
    const uint32_t me = block_of_cluster(blocks);
    Mailbox *box = job.boxes + blockIdx.x / blocks;
    const uint64_t begun = nanoseconds();
    open_desk(desk, blocks);

    for (uint32_t number = job.first;; number++) {
        const uint32_t *words = receive_mail(job, box, number, begun, dimensions, desk, places, blocks);
        if (!words)
            break;
        const uint64_t came = nanoseconds();
        graph_block_search<Kernel, kRegisters, kMailThreads>(arguments, 0, reinterpret_cast<const float *>(words),
                                                             blocks, dynamic);
        if (me == 0 && threadIdx.x < 32) {
            const uint32_t n = found == kOverflow ? 0 : 2 * found; /* words */
            const uint32_t ns = static_cast<uint32_t>(nanoseconds() - came);
            auto word = [&](uint32_t i) {
                return piece_of(i == 0 ? 2 + n : i == 1 ? found : i == 2 ? ns : i < 3 + n ? hits[i - 3] : 0, number);
            };
            for (uint32_t i = 2 * threadIdx.x; i < 3 + n; i += 64)
                store_host(box->answer + i, word(i), word(i + 1));
        }
    }
    if (me == 0 && threadIdx.x == 0)
        store_host(&box->left, job.generation);
}

struct MailLauncher {
    const Machine &machine;
    const Job &job, &walk;
    Storage storage; /* of job.rows */
    const MailJob &mail;
    BlockShape shape;
    cudaStream_t stream;
    bool *fits;

    template <class Kernel>
    void run()
    {
        if (job.ef <= 128)
            go<Kernel, 4>();
        else if (job.ef <= 256)
            go<Kernel, 8>();
        else
            go<Kernel, 16>();
    }

    template <class Kernel, int kRegisters>
    void go()
    {
        const size_t words =
            graph_block_words(Kernel::storage, walk.rows.pieces, walk.k, job.bits != nullptr, job.parents, job.degree,
                              shape.blocks, WarpList<kRegisters>::kCapacity, kMailThreads) +
            graph_mail_words(job.rows.dimensions, job.k);
        const size_t bytes = words * sizeof(uint32_t);
        *fits = bytes + kStaticShared <= machine.shared_per_block;
        if (!*fits)
            return;
        constexpr auto kernel = graph_mail_kernel<Kernel, kRegisters>;
        allow_shared<kernel>(bytes, machine.ordinal);
        launch_clusters(kernel, mail.count, shape.blocks, kMailThreads, bytes, stream, "graph_mail",
                        block_arguments(job, walk, storage), mail, shape.blocks);
    }
};

} // namespace vecgpu::cuda
