/*
 * search.cu: a batch of queries from the caller's memory to the caller's memory.
 *
 * Which kernels run follows from the mirror, the form, k and the number of queries. The answer does not follow from the
 * number: exact forms all end in the keys of rows.cuh, graph forms all expand nodes by the same rule.
 */
#include "state.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

namespace vecgpu::cuda {

namespace {

/* Hits of few queries are written to pinned memory by the kernels themselves. */
constexpr uint32_t kMappedQueries = 16;
constexpr uint32_t kMappedHits = 4096;
/* The scan's list must hold a few times k. */
constexpr uint32_t kMaxScanK = kScanCandidates / 8;
/* From so many queries on, one pass of the tensor cores beats a scan a query. */
constexpr uint32_t kLeastBatch = 2;

uint64_t now()
{
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

#define VECGPU_BY_STORAGE(call)                                                                                        \
    switch (storage) {                                                                                                 \
    case Storage::Float32: {                                                                                           \
        constexpr Storage kStorage = Storage::Float32;                                                                 \
        call;                                                                                                          \
        break;                                                                                                         \
    }                                                                                                                  \
    case Storage::Float16: {                                                                                           \
        constexpr Storage kStorage = Storage::Float16;                                                                 \
        call;                                                                                                          \
        break;                                                                                                         \
    }                                                                                                                  \
    case Storage::BFloat16: {                                                                                          \
        constexpr Storage kStorage = Storage::BFloat16;                                                                \
        call;                                                                                                          \
        break;                                                                                                         \
    }                                                                                                                  \
    case Storage::Int8: {                                                                                              \
        constexpr Storage kStorage = Storage::Int8;                                                                    \
        call;                                                                                                          \
        break;                                                                                                         \
    }                                                                                                                  \
    }

/* One search while it runs. */
class Search {
public:
    Search(DeviceStream &stream, DeviceMirror &mirror, const BatchParams &params, uint32_t count,
           std::shared_ptr<const Version> version)
        : stream_(stream), mirror_(mirror), params_(params), count_(count), version_(std::move(version)),
          storage_(mirror.shape.storage)
    {}

    void run(const BatchQuery *queries, BatchFinished finished, void *context, BatchTimes *times)
    {
        const uint64_t begin = now();
        const uint32_t dimensions = mirror_.shape.dimensions;
        reserve();
        for (uint32_t q = 0; q < count_; q++)
            memcpy(stream_.host_queries.data() + static_cast<size_t>(q) * dimensions, queries[q].query,
                   dimensions * sizeof(float));
        const size_t floats = static_cast<size_t>(count_) * dimensions;
        const float *raw = stream_.queries.data();
        describe();
        const bool graph = uses_graph();
        if (floats > kInlineFloats)
            check(cudaMemcpyAsync(stream_.queries.data(), stream_.host_queries.data(), floats * sizeof(float),
                                  cudaMemcpyHostToDevice, stream_.stream),
                  "queries");
        if (times)
            check(cudaEventRecord(stream_.begun, stream_.stream), "search");
        if (floats <= kInlineFloats)
            launch_prepare_inline(storage_, stream_.host_queries.data(), stream_.queries.data(), dimensions,
                                  job_.rows.pieces, count_, stream_.prepared.data(), stream_.stream);
        else
            launch_prepare(storage_, raw, dimensions, job_.rows.pieces, count_, stream_.prepared.data(),
                           stream_.stream);
        if (graph)
            launch_graph_search(raw);
        else
            launch_exact(raw);
        if (times)
            check(cudaEventRecord(stream_.ended, stream_.stream), "search");
        if (!mapped_) {
            check(cudaMemcpyAsync(stream_.host_hits.data(), stream_.hits.data(),
                                  static_cast<size_t>(count_) * params_.k * sizeof(Hit), cudaMemcpyDeviceToHost,
                                  stream_.stream),
                  "hits");
            check(cudaMemcpyAsync(stream_.host_counts.data(), stream_.counts.data(), count_ * sizeof(uint32_t),
                                  cudaMemcpyDeviceToHost, stream_.stream),
                  "hits");
        }
        check(cudaStreamSynchronize(stream_.stream), "search");
        std::vector<uint32_t> rest; /* queries that this form could not answer */
        for (uint32_t q = 0; q < count_; q++)
            if (unanswered(q, graph))
                rest.push_back(q);
            else
                deliver(queries[q], q, finished, context);
        if (times) {
            float milliseconds = 0;
            check(cudaEventElapsedTime(&milliseconds, stream_.begun, stream_.ended), "search");
            times->kernel_ns = static_cast<uint64_t>(milliseconds * 1e6);
            times->copy_ns = now() - begin - times->kernel_ns;
        }
        if (graph)
            answer_exactly(queries, rest, finished, context);
        else
            for (uint32_t q : rest) {
                general(q);
                deliver(queries[q], q, finished, context);
            }
    }

private:
    /*
     * Graph or exact, by mirror and parameters alone. A walk of width ef computes some 20 to 30 ef keys. With a filter,
     * n / passing nodes are met for each one that may be returned, so the walk must be wider; and as long as all rows
     * are read in the time of a few walks, exact is both safer and not much dearer (1M x 128: 0.5 us a query in
     * batches, the walk half of it).
     */
    bool uses_graph()
    {
        constexpr uint64_t kExactBytes = 2ull << 30;
        if (params_.form != SearchForm::Graph || mirror_.shape.kind != IndexKind::Hnsw || !version_->pivots)
            return false;
        const uint64_t nodes = version_->state.nodes;
        uint64_t ef = std::max(params_.ef, params_.k);
        if (nodes / 32 <= ef)
            return false;
        if (params_.filter) {
            if (nodes * mirror_.pitch * sizeof(uint4) <= kExactBytes)
                return false;
            uint64_t passing = 0;
            for (uint64_t i = 0; i < nodes / 64; i++)
                passing += std::popcount(params_.filter[i]);
            if (passing == 0 || passing / 32 <= ef)
                return false;
            ef = std::max(ef, static_cast<uint64_t>(2.5 * params_.k * static_cast<double>(nodes) / passing));
        }
        job_.ef = static_cast<uint32_t>(std::min<uint64_t>(ef, kMaxGraphEf));
        return ef <= kMaxGraphEf;
    }

    /* A list overflowed, or the graph led to too few rows. */
    bool unanswered(uint32_t q, bool graph) const
    {
        const uint32_t found = stream_.host_counts.data()[q];
        return found == kOverflow || (graph && found < params_.k && (params_.filter || found < version_->live));
    }

    void reserve()
    {
        const uint32_t dimensions = mirror_.shape.dimensions;
        const size_t floats = static_cast<size_t>(count_) * dimensions, hits = static_cast<size_t>(count_) * params_.k;
        mapped_ = count_ <= kMappedQueries && hits <= kMappedHits;
        stream_.host_queries.reserve(floats);
        stream_.host_hits.reserve(hits);
        stream_.host_counts.reserve(count_);
        stream_.queries.reserve(floats);
        stream_.prepared.reserve(static_cast<size_t>(count_) *
                                 query_pieces(storage_, row_pieces(storage_, dimensions)));
        stream_.hits.reserve(hits);
        stream_.counts.reserve(count_);
        stream_.entries.reserve(static_cast<size_t>(count_) * kEntries);
    }

    void describe()
    {
        job_.rows = mirror_.view();
        job_.nodes = version_->state.nodes;
        job_.bits = version_->bits ? version_->bits->data() : nullptr;
        if (params_.filter && job_.nodes > 0) {
            const uint32_t words = (job_.nodes + 63) / 64 * 2;
            stream_.bits.reserve(words);
            check(cudaMemcpyAsync(stream_.bits.data(), params_.filter, words * sizeof(uint32_t), cudaMemcpyHostToDevice,
                                  stream_.stream),
                  "filter");
            if (job_.bits)
                launch_and_bits(job_.bits, stream_.bits.data(), (job_.nodes + 31) / 32, stream_.stream);
            job_.bits = stream_.bits.data();
        }
        job_.k = params_.k;
        job_.count = count_;
        job_.prepared = stream_.prepared.data();
        job_.links = mirror_.links.data();
        job_.degree = 2u * mirror_.shape.m;
        job_.entries = stream_.entries.data();
        job_.first_parents = kFirstParents;
        job_.parents = kParents;
        job_.ramp_shift = kRampShift;
        job_.hits = mapped_ ? stream_.host_hits.data() : stream_.hits.data();
        job_.counts = mapped_ ? stream_.host_counts.data() : stream_.counts.data();
    }

    void launch_graph_search(const float *raw)
    {
        const Machine &machine = mirror_.device->machine;
        const Storage storage = version_->walks_on_image ? Storage::Int8 : storage_;
        launch_entry(machine, *version_->pivots, raw, count_, stream_.entries.data(), stream_.ticket.data(),
                     stream_.stream);
        const Job walk = describe_walk(raw);
        bool done = false;
        /* A smaller cluster needs less room for what its blocks tell each other. */
        for (BlockShape shape = shape_of_blocks(); shape.blocks > 0 && !done; shape.blocks /= 2)
            VECGPU_BY_STORAGE(done = launch_graph_block<kStorage>(machine, walk, shape, stream_.stream));
        if (!done)
            VECGPU_BY_STORAGE(launch_graph_warp<kStorage>(machine, walk, stream_.ticket.data(), stream_.stream));
        if (storage == Storage::Int8) {
            const Storage storage = storage_;
            VECGPU_BY_STORAGE(launch_refine<kStorage>(machine, job_, walk, stream_.stream));
        }
    }

    /* What the graph kernels search: the rows, or their image; if it is int8, coarsely, for refining. */
    Job describe_walk(const float *raw)
    {
        Job walk = job_;
        if (version_->walks_on_image) {
            walk.rows = mirror_.walk_image.view(job_.rows);
            stream_.walk_prepared.reserve(static_cast<size_t>(count_) * query_pieces(Storage::Int8, walk.rows.pieces));
            walk.prepared = stream_.walk_prepared.data();
            launch_prepare(Storage::Int8, raw, walk.rows.dimensions, walk.rows.pieces, count_,
                           stream_.walk_prepared.data(), stream_.stream);
        } else if (storage_ != Storage::Int8) {
            return walk;
        }
        walk.k = refined_hits(job_.k, job_.ef);
        stream_.walk_hits.reserve(static_cast<size_t>(count_) * walk.k);
        stream_.walk_counts.reserve(count_);
        walk.hits = stream_.walk_hits.data();
        walk.counts = stream_.walk_counts.data();
        return walk;
    }

    /* The form of a graph search by the number of queries: measured, see README.md. No blocks: a warp a query. */
    BlockShape shape_of_blocks() const
    {
        const uint32_t sms = mirror_.device->machine.sms;
        if (mirror_.device->machine.major >= 9) {
            /* Clusters must fit into the groups of SMs that a chip is made of, so some SMs stay idle. */
            if (count_ * 8 <= sms * 3 / 4)
                return {8, 512};
            if (count_ * 4 <= sms * 7 / 8)
                return {4, 512};
            if (count_ * 2 <= sms)
                return {2, 512};
        }
        if (count_ <= sms)
            return {1, 512};
        /* Two blocks an SM, in two turns; then smaller ones, eight an SM; then warps, with the highest throughput. */
        if (count_ <= sms * 4)
            return {1, 256};
        return count_ <= sms * 8 ? BlockShape{1, 128} : BlockShape{0, 0};
    }

    void launch_exact(const float *raw)
    {
        const Machine &machine = mirror_.device->machine;
        const Storage storage = storage_;
        if (count_ >= kLeastBatch && flat_batch_possible(mirror_.image, job_.k)) {
            const FlatLists lists =
                launch_flat_lists(machine, mirror_.image, version_->bounds, job_, raw, &stream_.flat, stream_.stream);
            VECGPU_BY_STORAGE(launch_rescore<kStorage>(machine, job_, lists, stream_.stream));
            return;
        }
        for (uint32_t q = 0; q < count_; q++) {
            if (job_.k <= kMaxScanK) {
                const ScanWorkspace workspace = {stream_.minima.data(), stream_.candidates.data(),
                                                 stream_.counters.data()};
                VECGPU_BY_STORAGE(launch_scan<kStorage>(machine, job_, q, workspace, stream_.stream));
            } else {
                launch_general(q);
            }
        }
    }

    void launch_general(uint32_t q)
    {
        const Machine &machine = mirror_.device->machine;
        const Storage storage = storage_;
        stream_.orders.reserve(job_.nodes);
        VECGPU_BY_STORAGE(launch_keys<kStorage>(machine, job_, q, stream_.orders.data(), stream_.stream));
        launch_radix_select(machine, stream_.orders.data(), job_.nodes, job_.k, stream_.radix.data(),
                            stream_.candidates.data(), job_.hits + static_cast<size_t>(q) * job_.k, job_.counts + q,
                            stream_.stream);
    }

    void general(uint32_t q)
    {
        launch_general(q);
        if (!mapped_) {
            const size_t at = static_cast<size_t>(q) * job_.k;
            check(cudaMemcpyAsync(stream_.host_hits.data() + at, job_.hits + at, job_.k * sizeof(Hit),
                                  cudaMemcpyDeviceToHost, stream_.stream),
                  "hits");
            check(cudaMemcpyAsync(stream_.host_counts.data() + q, job_.counts + q, sizeof(uint32_t),
                                  cudaMemcpyDeviceToHost, stream_.stream),
                  "hits");
        }
        check(cudaStreamSynchronize(stream_.stream), "search");
    }

    /* The queries `which`, on the same version. Overwrites the stream's workspace: all others have been delivered. */
    void answer_exactly(const BatchQuery *queries, const std::vector<uint32_t> &which, BatchFinished finished,
                        void *context)
    {
        if (which.empty())
            return;
        BatchParams params = params_;
        params.form = SearchForm::Exact;
        std::vector<BatchQuery> list;
        for (uint32_t q : which)
            list.push_back(queries[q]);
        Search(stream_, mirror_, params, static_cast<uint32_t>(list.size()), version_)
            .run(list.data(), nullptr, nullptr, nullptr);
        if (finished)
            for (uint32_t q : which)
                finished(context, q);
    }

    void deliver(const BatchQuery &query, uint32_t q, BatchFinished finished, void *context) const
    {
        const uint32_t found = stream_.host_counts.data()[q];
        memcpy(query.hits, stream_.host_hits.data() + static_cast<size_t>(q) * params_.k, found * sizeof(Hit));
        *query.count = found;
        if (finished)
            finished(context, q);
    }

    DeviceStream &stream_;
    DeviceMirror &mirror_;
    const BatchParams &params_;
    uint32_t count_;
    std::shared_ptr<const Version> version_;
    Storage storage_;
    bool mapped_ = false; /* hits go to pinned memory directly */
    Job job_{};
};

} // namespace

void search_mirror(DeviceStream &stream, DeviceMirror &mirror, const BatchParams &params, const BatchQuery *queries,
                   uint32_t count, BatchFinished finished, void *context, BatchTimes *times)
{
    if ((params.form != SearchForm::Graph && params.form != SearchForm::Exact) || params.k < 1 || params.k > kMaxHits ||
        params.dimensions != mirror.shape.dimensions || count > mirror.device->max_batch)
        fail(Status::BadRequest, "a search out of range");
    if (times)
        *times = {};
    if (count == 0)
        return;
    std::shared_ptr<const Version> version = mirror.current();
    if (version->state.nodes == 0) {
        for (uint32_t q = 0; q < count; q++) {
            *queries[q].count = 0;
            if (finished)
                finished(context, q);
        }
        return;
    }
    Search(stream, mirror, params, count, std::move(version)).run(queries, finished, context, times);
}

} // namespace vecgpu::cuda
