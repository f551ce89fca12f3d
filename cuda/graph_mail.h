/*
 * graph_mail.h: graph search of the queries that come by mail.
 */
#pragma once

#include "job.h"
#include "resident.h"

namespace vecgpu::cuda {

/*
 * Starts a kernel, a cluster for each mailbox, that serves these until its lease is over. Of the job everything counts but the
 * queries and where hits go: they come and go by the mailbox. A query is its floats; an answer is the count, kOverflow
 * included, then nanoseconds from the query's arrival to its answer, then the hits. False, and nothing done, if a block
 * has too little shared memory, or ef is wide. `walk` and `storage` as for launch_graph_block().
 */
template <Storage kStorage>
bool launch_graph_mail(const Machine &machine, const Job &job, const Job &walk, Storage storage, BlockShape shape,
                       const MailJob &mail, cudaStream_t stream);

} // namespace vecgpu::cuda
