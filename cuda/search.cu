/*
 * search.cu: a batch of queries from the caller's memory to the caller's memory.
 *
 * Which kernels run follows from the mirror, the form, k and the number of queries. The answer does not follow from the
 * number: exact forms all end in the keys of rows.cuh, graph forms all expand nodes by the same rule.
 */
#include "graph_mail.h"
#include "state.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <optional>

namespace vecgpu::cuda {

namespace {

/* Hits of few queries are written to pinned memory by the kernels themselves. */
constexpr uint32_t kMappedHits = 4096;
/* Blocks of a cluster, and of one whose boxes have room for all words of a round (block_round.cuh). */
constexpr uint32_t kMostBlocks = 8, kRoomyBlocks = 4;
/* The scan's list must hold a few times k. */
constexpr uint32_t kMaxScanK = kScanCandidates / 8;

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

/* One more, as long as it lives. */
class Counted {
public:
    explicit Counted(std::atomic<uint32_t> &count) : count_(count) { count_++; }
    ~Counted() { count_--; }
    Counted(const Counted &) = delete;

private:
    std::atomic<uint32_t> &count_;
};

/* One search while it runs. */
class Search {
public:
    Search(DeviceStream &stream, DeviceMirror &mirror, const BatchParams &params, uint32_t count,
           std::shared_ptr<const Version> version, uint32_t most_blocks = kMostBlocks)
        : stream_(stream), mirror_(mirror), params_(params), count_(count), version_(std::move(version)),
          storage_(mirror.shape.storage), most_blocks_(most_blocks)
    {}

    void run(const BatchQuery *queries, BatchFinished finished, void *context, BatchTimes *times)
    {
        const uint64_t begin = now();
        if (count_ <= kMappedQueries && !params_.filter && uses_graph() &&
            answer_by_mail(queries, finished, context, times))
            return;
        const uint32_t dimensions = mirror_.shape.dimensions;
        reserve();
        for (uint32_t q = 0; q < count_; q++)
            memcpy(stream_.host_queries.data() + static_cast<size_t>(q) * dimensions, queries[q].query,
                   dimensions * sizeof(float));
        const size_t floats = static_cast<size_t>(count_) * dimensions;
        describe();
        const bool graph = uses_graph();
        std::optional<Residents::Away> away; /* the scan wants all SMs at once, large batches have use for them */
        if (!graph || count_ > kMappedQueries)
            away.emplace(mirror_.device->residents);
        if (!job_.inline_raw)
            check(cudaMemcpyAsync(stream_.queries.data(), stream_.host_queries.data(), floats * sizeof(float),
                                  cudaMemcpyHostToDevice, stream_.stream),
                  "queries");
        if (times)
            check(cudaEventRecord(stream_.begun, stream_.stream), "search");
        if (graph)
            launch_graph_search();
        else
            launch_exact();
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
            answer_rest(queries, rest, finished, context);
        else
            for (uint32_t q : rest) {
                general(q);
                deliver(queries[q], q, finished, context);
            }
    }

private:
    /*
     * Graph or exact, by mirror and parameters alone. Which of them is faster is the engine's to measure and to ask for
     * (engine/cost_model.h); this says where a walk cannot answer, or would look at nearly everything. A walk of width
     * ef computes some 20 to 30 ef keys. With a filter, n / passing nodes are met for each one that may be returned, so
     * the walk must be wider; and as long as all rows are read in the time of a few walks, exact is both safer and not
     * much dearer (1M x 128: 0.5 us a query in batches, the walk half of it).
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
        job_.parents = most_parents(job_.ef);
        return ef <= kMaxGraphEf;
    }

    /*
     * Few queries of a graph, through mailboxes: one launch, and the caller looks at the answers. One query may even be
     * spared the launch: its kernel stays if single queries come one after the other, and nothing else, as then the
     * next one is likely to come soon. False: not in this way, and no query was answered.
     */
    bool answer_by_mail(const BatchQuery *queries, BatchFinished finished, void *context, BatchTimes *times)
    {
        const uint32_t dimensions = mirror_.shape.dimensions, room = 2 + 2 * params_.k;
        if (dimensions > kMailQueryWords || room >= kMailAnswerWords)
            return false;
        const uint64_t begin = now();
        describe();
        Device &device = *mirror_.device;
        if (count_ == 1) {
            const ResidentJob serving = {version_->number, job_.k, job_.ef, most_blocks_};
            if (!(serving == stream_.serving))
                stream_.resident.change();
            stream_.serving = serving;
        } else {
            stream_.resident.dismiss();
        }
        auto words = [&](uint32_t q) { return reinterpret_cast<const uint32_t *>(queries[q].query); };
        auto lease = [&] {
            const bool soon = begin < device.last_single_ns.load(std::memory_order_relaxed) + kLease.idle;
            const bool stay = count_ == 1 && soon && device.batches.load() == 0 && device.residents.may_stay();
            return stay ? kLease : kNoLease;
        };
        auto launch = [&](const MailJob &mail, cudaStream_t stream) {
            const Storage storage = walk_storage();
            const Job walk = describe_walk();
            bool done = false;
            for (BlockShape shape = shape_of_blocks(); shape.blocks > 0 && !done; shape.blocks /= 2)
                VECGPU_BY_STORAGE(
                    done = launch_graph_mail<kStorage>(device.machine, job_, walk, storage_, shape, mail, stream));
            return done;
        };
        std::vector<uint32_t> rest;
        uint32_t longest = 0, open = (1u << count_) - 1;
        auto take = [&](uint32_t q, const uint32_t *answer) {
            open &= ~(1u << q);
            longest = std::max(longest, answer[1]);
            if (times)
                times->kernel_ns = longest;
            if (incomplete(answer[0])) {
                rest.push_back(q);
                return;
            }
            memcpy(queries[q].hits, answer + 2, answer[0] * sizeof(Hit));
            *queries[q].count = answer[0];
            if (finished)
                finished(context, q);
        };
        Resident &resident = count_ == 1 ? stream_.resident : stream_.mail;
        const uint32_t all = open;
        if (!resident.ask(count_, dimensions, room, words, lease, launch, take) && open == all)
            return false;
        if (count_ == 1)
            device.last_single_ns.store(now(), std::memory_order_relaxed);
        if (times)
            times->copy_ns = now() - begin - times->kernel_ns;
        answer_rest(queries, rest, finished, context);
        std::vector<uint32_t> late; /* there is something wrong with the mail, which is not used again */
        for (; open; open &= open - 1)
            late.push_back(std::countr_zero(open));
        answer_again(SearchForm::Graph, queries, late, finished, context);
        return true;
    }

    /* A list overflowed, or the graph led to too few rows. */
    bool unanswered(uint32_t q, bool graph) const
    {
        const uint32_t found = stream_.host_counts.data()[q];
        return found == kOverflow || (graph && incomplete(found));
    }

    bool incomplete(uint32_t found) const
    {
        return found == kOverflow || (found < params_.k && (params_.filter || found < version_->live));
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
        stream_.nearest.reserve(static_cast<size_t>(count_) * kEntryParts);
        stream_.turns.reserve(count_);
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
        job_.raw = stream_.queries.data();
        if (static_cast<size_t>(count_) * mirror_.shape.dimensions <= kInlineFloats)
            job_.inline_raw = stream_.host_queries.data();
        if (version_->pivots)
            job_.pivots = version_->pivots->view();
        job_.first_parents = kFirstParents;
        job_.ramp_shift = kRampShift;
        job_.hits = mapped_ ? stream_.host_hits.data() : stream_.hits.data();
        job_.counts = mapped_ ? stream_.host_counts.data() : stream_.counts.data();
    }

    void launch_prepared()
    {
        const uint32_t dimensions = mirror_.shape.dimensions;
        if (job_.inline_raw)
            launch_prepare_inline(storage_, job_.inline_raw, stream_.queries.data(), dimensions, job_.rows.pieces,
                                  count_, stream_.prepared.data(), stream_.stream);
        else
            launch_prepare(storage_, job_.raw, dimensions, job_.rows.pieces, count_, stream_.prepared.data(),
                           stream_.stream);
    }

    void launch_entries()
    {
        launch_entry(mirror_.device->machine, job_.pivots, mirror_.shape.dimensions, job_.raw, count_,
                     stream_.entries.data(), stream_.nearest.data(), stream_.ticket.data(), stream_.stream);
        job_.entries = stream_.entries.data();
        /* Not all of them are begun at once. */
        if (count_ > mirror_.device->machine.sms * 6u && count_ <= kMostTurns) {
            launch_turns(mirror_.device->machine, stream_.nearest.data(), count_, stream_.turns.data(), stream_.stream);
            job_.turns = stream_.turns.data();
        }
    }

    void launch_graph_search()
    {
        const Machine &machine = mirror_.device->machine;
        const Storage storage = walk_storage();
        BlockShape shape = shape_of_blocks();
        /* A cluster scans the pivots itself; a block would take as long as a kernel of its own for all queries. */
        if (shape.blocks == 1 && !job_.inline_raw)
            launch_entries();
        Job walk = describe_walk();
        bool done = false;
        /* A smaller cluster needs less room for what its blocks tell each other. */
        for (; shape.blocks > 0 && !done; shape.blocks /= 2)
            VECGPU_BY_STORAGE(done =
                                  launch_graph_block<kStorage>(machine, job_, walk, storage_, shape, stream_.stream));
        if (done)
            return;
        launch_prepared();
        if (!job_.entries)
            launch_entries();
        walk.entries = job_.entries;
        walk.turns = job_.turns;
        if (version_->walks_on_image) {
            stream_.walk_prepared.reserve(static_cast<size_t>(count_) * query_pieces(Storage::Int8, walk.rows.pieces));
            walk.prepared = stream_.walk_prepared.data();
            launch_prepare(Storage::Int8, job_.raw, walk.rows.dimensions, walk.rows.pieces, count_,
                           stream_.walk_prepared.data(), stream_.stream);
        }
        if (storage == Storage::Int8) {
            stream_.walk_hits.reserve(static_cast<size_t>(count_) * walk.k);
            stream_.walk_counts.reserve(count_);
            walk.hits = stream_.walk_hits.data();
            walk.counts = stream_.walk_counts.data();
        }
        VECGPU_BY_STORAGE(launch_graph_warp<kStorage>(machine, walk, stream_.ticket.data(), stream_.stream));
        if (storage == Storage::Int8) {
            const Storage storage = storage_;
            VECGPU_BY_STORAGE(launch_refine<kStorage>(machine, job_, walk, stream_.stream));
        }
    }

    Storage walk_storage() const { return version_->walks_on_image ? Storage::Int8 : storage_; }

    /* What the graph kernels walk on: the rows, or their image; if it is int8, coarsely, for computing hits again. */
    Job describe_walk() const
    {
        Job walk = job_;
        if (version_->walks_on_image)
            walk.rows = mirror_.walk_image.view(job_.rows);
        if (walk_storage() == Storage::Int8)
            walk.k = refined_hits(job_.k, job_.ef);
        return walk;
    }

    /* The form of a graph search by the number of queries: measured, see README.md. No blocks: a warp a query. */
    BlockShape shape_of_blocks() const
    {
        const uint32_t sms = mirror_.device->machine.sms;
        if (mirror_.device->machine.major >= 9) {
            /* Clusters must fit into the groups of SMs that a chip is made of, so some SMs stay idle. */
            if (count_ * 8 <= sms * 3 / 4 && most_blocks_ >= 8)
                return {8, 512};
            if (count_ * 4 <= sms * 7 / 8)
                return {4, 512};
            if (count_ * 2 <= sms)
                return {2, 512};
        }
        if (count_ <= sms)
            return {1, 512};
        /* Two blocks an SM; narrow lists then by smaller ones, six an SM; then warps, with the highest throughput. */
        if (count_ <= sms * (job_.ef <= 128 ? 2 : 12))
            return {1, 256};
        return job_.ef <= 128 && count_ <= sms * 16 ? BlockShape{1, 128} : BlockShape{0, 0};
    }

    /*
     * The tensor cores read the 16-bit image, the scan the rows, and the scan needs some 40 us less besides, in which
     * 192 MB are read: so one query takes the scan if its rows are not much larger than the image. A filter spares the
     * scan most rows.
     */
    bool takes_batch_form() const
    {
        constexpr uint64_t kScanAhead = 192 << 20;
        if (!flat_batch_possible(mirror_.image, job_.k))
            return false;
        const uint64_t rows = static_cast<uint64_t>(job_.nodes) * mirror_.pitch * sizeof(uint4),
                       image = flat_image_bytes(mirror_.device->machine, mirror_.shape.dimensions, job_.nodes);
        return count_ > 1 || (job_.k <= 32 && !params_.filter && rows >= image + kScanAhead);
    }

    /* An exact search of one query whose scan prepares it itself. */
    bool scans_alone() const
    {
        return count_ == 1 && !takes_batch_form() && job_.k <= kMaxScanK && mirror_.shape.dimensions <= kInlineFloats;
    }

    void launch_exact()
    {
        const bool alone = scans_alone();
        if (!alone)
            launch_prepared();
        const Machine &machine = mirror_.device->machine;
        const Storage storage = storage_;
        const ScanWorkspace workspace = {stream_.minima.data(), stream_.candidates.data(), stream_.scan_ends.data()};
        if (takes_batch_form()) {
            const FlatLists lists = launch_flat_lists(machine, mirror_.image, version_->bounds, job_, job_.raw,
                                                      &stream_.flat, stream_.stream);
            VECGPU_BY_STORAGE(launch_rescore<kStorage>(machine, job_, lists, stream_.stream));
            return;
        }
        for (uint32_t q = 0; q < count_; q++) {
            bool done = false;
            if (job_.k <= kMaxScanK)
                VECGPU_BY_STORAGE(done = launch_scan<kStorage>(machine, job_, q,
                                                               alone ? stream_.host_queries.data() : nullptr, workspace,
                                                               stream_.stream));
            if (!done) {
                if (alone)
                    launch_prepared();
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
        if (scans_alone())
            launch_prepared();
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

    /*
     * What a walk could not answer is answered exactly. But a cluster of eight may have given up for want of room, as no
     * other form does: first the walk is tried by a smaller one, so that the answer is that of all forms.
     */
    void answer_rest(const BatchQuery *queries, const std::vector<uint32_t> &which, BatchFinished finished,
                     void *context)
    {
        if (shape_of_blocks().blocks > kRoomyBlocks)
            answer_again(SearchForm::Graph, queries, which, finished, context, kRoomyBlocks);
        else
            answer_again(SearchForm::Exact, queries, which, finished, context);
    }

    /* The queries `which`, on the same version. Overwrites the stream's workspace: all others have been delivered. */
    void answer_again(SearchForm form, const BatchQuery *queries, const std::vector<uint32_t> &which,
                      BatchFinished finished, void *context, uint32_t most_blocks = kMostBlocks)
    {
        if (which.empty())
            return;
        BatchParams params = params_;
        params.form = form;
        std::vector<BatchQuery> list;
        for (uint32_t q : which)
            list.push_back(queries[q]);
        Search(stream_, mirror_, params, static_cast<uint32_t>(list.size()), version_, most_blocks)
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
    uint32_t most_blocks_;
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
    std::optional<Counted> batch;
    if (count > 1 || params.form != SearchForm::Graph)
        batch.emplace(mirror.device->batches);
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
