/*
 * nodes.cpp: see nodes.h.
 */
#include <algorithm>
#include <cmath>
#include <limits>

#include "am/mirror.h"
#include "am/nodes.h"
#include "client/settings.h"
#include "client/stats.h"
#include "page/allocator.h"

namespace vecgpu {

namespace {

constexpr uint32_t kVerifyStep = 16;
constexpr uint32_t kExactFirst = 64;
constexpr uint32_t kAddBatch = 256;

/* Below this a session searches its index faster than it can ask for it. */
constexpr uint64_t kSmallBytes = 256 * 1024;

/*
 * Nodes that the mirror does not have yet are read from the pages by every search: about 60 ns for 512 bytes, so this is some 2 ms at
 * most. A mirror further behind is not used.
 */
constexpr uint64_t kTailBytes = 16 * 1024 * 1024;
constexpr uint32_t kTailTwins = 4096;

/*
 * A device sums in another order than the pages' kernels do, and may work with |x|^2 + |q|^2 - 2 x q, whose error goes with the
 * norms. Only the order in which candidates are looked at rests on it.
 */
constexpr float kKeyError = 2e-5f;

} // namespace

void Nodes::init(Relation index, const Meta *meta, PageSource *source, MemoryContext context, const NodeDemand &demand)
{
    index_ = index;
    meta_ = meta;
    source_ = source;
    context_ = context;
    demand_ = demand;
    emitted_ = 0;
    stream_ready_ = skipping_ = complete_ = answered_ = false;
    on_engine_ = wants_engine();
    if (!on_engine_) {
        start_stream();
        return;
    }
    form_ = first_form();
    width_ = 0;
    hits_ = nullptr;
    hits_count_ = hits_checked_ = hits_capacity_ = 0;
    Allocator memory = VgAllocator(context);
    waiting_.init(128, memory);
    known_.init(128, memory);
    out_ = nullptr;
    out_count_ = out_capacity_ = 0;
    tail_from_ = kNone;
    verify_ns_ = dropped_ = 0;
    error_ = kKeyError;
    scale_ = 1;
    if (meta->metric != Metric::Cosine) {
        double norm2 = 0;
        for (uint32_t i = 0; i < meta->dimensions; i++)
            norm2 += static_cast<double>(source->query.vector[i]) * source->query.vector[i];
        scale_ = static_cast<float>(norm2);
    }
}

/* Where the engine has nothing to offer; none of these is a failure. */
bool Nodes::wants_engine() const
{
    if (vg_device == kDeviceCpu || source_->null_query || demand_.all || meta_->nodes == 0)
        return false;
    /* The pages of a temporary index are in the memory of its session. */
    if (RelationUsesLocalBuffers(index_))
        return false;
    if (demand_.rows > kMaxHits / 2)
        return false;
    if (vg_device == kDeviceAuto)
        return VgGpuModuleInstalled() &&
               static_cast<uint64_t>(meta_->nodes) * row_bytes(meta_->storage, meta_->dimensions) > kSmallBytes;
    return true;
}

/* The setting decides between forms that a LIMIT is well served by; a scan that wants all in order is exact whatever it says. */
SearchForm Nodes::first_form() const
{
    if (demand_.sweep_after == 0 || vg_device_form == kFormExact || meta_->kind == IndexKind::Flat)
        return SearchForm::Exact;
    return vg_device_form == kFormGraph ? SearchForm::Graph : SearchForm::Auto;
}

bool Nodes::next(uint32_t *slot, float *key)
{
    if (on_engine_) {
        if (next_from_engine(slot, key)) {
            emitted_++;
            return true;
        }
        if (on_engine_ && complete_)
            return false;
        on_engine_ = false;
    }
    if (!stream_ready_)
        start_stream();
    while (stream_.next(slot, key)) {
        if (skipping_ && skip_.contains(*slot))
            continue;
        emitted_++;
        return true;
    }
    return false;
}

void Nodes::sweep_soon()
{
    if (demand_.sweep_after == 0)
        return;
    demand_.sweep_after = 0;
    if (!on_engine_) {
        stream_.sweep_soon();
    } else if (form_ != SearchForm::Exact) {
        form_ = SearchForm::Exact;
        width_ = 0; /* ask anew */
    }
}

/* The walk over the pages, from its start, without the nodes that the engine found. */
void Nodes::start_stream()
{
    Allocator memory = VgAllocator(context_);
    if (emitted_ > 0) {
        skip_.init(out_count_, memory);
        for (uint64_t i = 0; i < out_count_; i++)
            skip_.insert(out_[i], memory);
        skipping_ = true;
    }
    stream_.init(source_, memory, demand_.ef, demand_.sweep_after);
    stream_.look_ahead(demand_.look_ahead);
    stream_ready_ = true;
}

bool Nodes::next_from_engine(uint32_t *slot, float *key)
{
    for (;;) {
        /* The look-ahead of Stream::next(): the next row stands when so many nearer and farther ones are known. */
        uint64_t ahead = 0;
        if (form_ != SearchForm::Exact && demand_.look_ahead)
            ahead = std::max(std::min<uint64_t>(emitted_, demand_.ef), emitted_ / 2);
        uint64_t need = emitted_ + 1 + ahead;
        if (complete_ || need <= width_) {
            if (take(slot, key))
                break;
            if (complete_)
                return false;
        }
        if (width_ == kMaxHits) {
            /* The pages go on from here, in the order that the scan had so far. */
            if (form_ == SearchForm::Exact)
                demand_.sweep_after = 0;
            return false;
        }
        uint64_t k;
        if (width_ == 0 && demand_.sweep_after != 0) {
            /*
             * What a LIMIT needs with its look-ahead, at once, and the node after it, which tells the scan that no other is as near as the
             * last. A cursor gets what the beam holds.
             */
            uint64_t nodes = demand_.rows + 1;
            bool twice = form_ != SearchForm::Exact && demand_.look_ahead;
            k = demand_.rows == 0 ? demand_.ef : twice ? 2 * nodes : nodes;
        } else if (form_ == SearchForm::Exact) {
            k = std::max<uint64_t>({kExactFirst, demand_.rows, 4 * static_cast<uint64_t>(width_), 2 * emitted_});
        } else {
            k = 2 * static_cast<uint64_t>(width_);
        }
        k = std::max(k, need);
        if (!ask(static_cast<uint32_t>(std::min<uint64_t>(k, kMaxHits))))
            return false;
    }
    if (out_count_ == out_capacity_) {
        uint64_t capacity = out_capacity_ == 0 ? 64 : 2 * out_capacity_;
        uint32_t *larger = static_cast<uint32_t *>(MemoryContextAllocHuge(context_, capacity * sizeof(uint32_t)));
        if (out_count_ > 0) {
            memcpy(larger, out_, out_count_ * sizeof(uint32_t));
            pfree(out_);
        }
        out_ = larger;
        out_capacity_ = capacity;
    }
    out_[out_count_++] = *slot;
    return true;
}

/* The nearest node by the pages' keys, once no candidate that was not looked at can be nearer. */
bool Nodes::take(uint32_t *slot, float *key)
{
    for (;;) {
        float bound = std::numeric_limits<float>::infinity();
        if (hits_checked_ < hits_count_) {
            float next = hits_[hits_checked_].key;
            float size = std::fabs(next);
            bound = next - error_ * (scale_ + size + 2 * std::sqrt(scale_ * size));
        }
        if (waiting_.size() > 0 && key_of(waiting_.top()) < bound) {
            Packed first = waiting_.top();
            waiting_.pop();
            *slot = slot_of(first);
            *key = key_of(first);
            return true;
        }
        if (hits_checked_ == hits_count_)
            return false;
        verify();
    }
}

/* Looks up the next candidates on the pages. */
void Nodes::verify()
{
    uint32_t slots[kVerifyStep];
    uint32_t n = 0;
    while (n < kVerifyStep && hits_checked_ < hits_count_)
        slots[n++] = hits_[hits_checked_++].slot;
    uint64_t started = now_ns();
    add(slots, n, true);
    verify_ns_ += now_ns() - started;
}

/* Puts nodes that are not known yet into waiting_. At most kAddBatch. */
void Nodes::add(const uint32_t *slots, uint32_t n, bool from_mirror)
{
    Allocator memory = VgAllocator(context_);
    uint32_t fresh[kAddBatch];
    float keys[kAddBatch];
    uint32_t count = 0;
    CHECK_FOR_INTERRUPTS();
    for (uint32_t i = 0; i < n; i++) {
        if (slots[i] < meta_->nodes && known_.insert(slots[i], memory))
            fresh[count++] = slots[i];
        else if (from_mirror && slots[i] >= meta_->nodes)
            dropped_++; /* flushed after this scan's metapage was copied: it has them in the delta */
    }
    source_->keys(fresh, count, keys);
    for (uint32_t i = 0; i < count; i++)
        waiting_.push(pack(keys[i], fresh[i]), memory);
}

/* What the mirror does not have: new nodes, and nodes that got another row: it may take them for dead. */
void Nodes::read_tail(uint32_t nodes, uint32_t twins)
{
    uint32_t slots[kAddBatch];
    for (uint32_t slot = nodes; slot < meta_->nodes;) {
        uint32_t n = 0;
        for (; n < kAddBatch && slot < meta_->nodes; slot++)
            slots[n++] = slot;
        add(slots, n, false);
    }
    for (uint32_t twin = twins; twin < meta_->twins; twin++) {
        TwinRecord record;
        VgReadRecord(source_->regions, Region::Twins, twin, &record);
        add(&record.slot, 1, false);
    }
}

/* Whether an answer can be true: hits in order, of nodes that there are, with keys like those of the pages. */
bool Nodes::accept(const Response &response)
{
    uint32_t strange = 0;
    for (uint32_t i = 0; i < response.count; i++) {
        /* Beyond both states there may be a few, of a mirror that caught up meanwhile. */
        if (hits_[i].slot >= response.search.nodes && hits_[i].slot >= meta_->nodes && ++strange > response.count / 2)
            return false;
        if (std::isnan(hits_[i].key))
            return false;
        if (i > 0 && pack(hits_[i].key, hits_[i].slot) <= pack(hits_[i - 1].key, hits_[i - 1].slot))
            return false;
    }

    /* The first and the last key against the pages; a narrower mirror is off by more, a wrong one by much more. */
    uint32_t probe[2] = {0, response.count - 1};
    for (uint32_t i = 0; i < 2 && response.count > 0; i++) {
        const Hit &hit = hits_[probe[i]];
        if (hit.slot >= meta_->nodes)
            continue;
        float key;
        source_->keys(&hit.slot, 1, &key);
        /* Where the norm leaves the range of float32, the pages' key is 2 and says nothing; a device may know better. */
        if (meta_->metric == Metric::Cosine && (key >= 2 || hit.key >= 2)) {
            error_ = std::numeric_limits<float>::infinity();
            continue;
        }
        float off = std::fabs(key - hit.key);
        float size = std::max(std::fabs(key), std::fabs(hit.key));
        if (off > 0.1f * size + 0.02f * scale_)
            return false;
        if (off > kKeyError * (scale_ + size + 2 * std::sqrt(scale_ * size)))
            error_ = std::numeric_limits<float>::infinity(); /* look at all before any goes out */
    }
    hits_count_ = response.count;
    return true;
}

bool Nodes::ask_once(uint32_t k, VgFallback *reason)
{
    /* Room first: no error may come between an answer and the release of its slot. */
    hits_count_ = hits_checked_ = 0;
    if (hits_capacity_ < k) {
        if (hits_ != nullptr)
            pfree(hits_);
        hits_ = nullptr;
        hits_ = static_cast<Hit *>(MemoryContextAlloc(context_, sizeof(Hit) * k));
        hits_capacity_ = k;
    }
    IndexKey key = VgIndexKey(index_, *meta_);
    Call call;
    *reason = VgOpenCall(&call);
    if (*reason != VgFallback::None)
        return false;
    Request &request = call.slot->request;
    request.op = Op::Search;
    request.search.index = key;
    request.search.form = form_;
    request.search.k = k;
    request.search.ef = form_ == SearchForm::Exact ? k : std::max(k, demand_.ef);
    request.search.dimensions = meta_->dimensions;
    uint64_t tail = kTailBytes / row_bytes(meta_->storage, meta_->dimensions);
    request.search.least_nodes = meta_->nodes > tail ? meta_->nodes - static_cast<uint32_t>(tail) : 0;
    request.search.filter = 0;
    memcpy(call.slot->payload, source_->query.vector, meta_->dimensions * sizeof(float));
    VgSubmitCall(&call, lane_);
    *reason = VgWaitCall(&call, vg_engine_timeout);
    if (*reason != VgFallback::None)
        return false;

    /* The memory is shared: what is looked at must be a copy. */
    Response response = call.slot->response;
    response.message[sizeof(response.message) - 1] = '\0';
    bool fits = response.status == Status::Ok && response.count <= k;
    if (fits)
        memcpy(hits_, call.slot->hits, sizeof(Hit) * response.count);
    VgCloseCall(&call);
    *reason = VgFallbackOf(response.status);
    if (*reason != VgFallback::None) {
        if (response.message[0] != '\0')
            ereport(DEBUG1, (errmsg_internal("vecgpu engine answers: %s", response.message)));
        return false;
    }
    if (!fits || !accept(response)) {
        *reason = VgFallback::WrongAnswer;
        return false;
    }

    width_ = k;
    /* Exact from now on: what a walk would find beyond it may be nearer than what went out. */
    if (form_ == SearchForm::Auto && response.search.form == SearchForm::Exact)
        form_ = SearchForm::Exact;
    if (response.count < k) {
        /* A walk that ends early has left nodes behind; a scan has not. */
        if (form_ == SearchForm::Exact)
            complete_ = true;
        else
            demand_.sweep_after = 0;
    }
    if (meta_->twins > response.search.twins && meta_->twins - response.search.twins > kTailTwins) {
        *reason = VgFallback::Behind;
        return false;
    }
    if (tail_from_ == kNone) {
        tail_from_ = std::min(response.search.nodes, meta_->nodes);
        tail_twins_ = std::min(response.search.twins, meta_->twins);
        read_tail(tail_from_, tail_twins_);
    } else if (response.search.nodes < tail_from_ || response.search.twins < tail_twins_) {
        *reason = VgFallback::Behind; /* another engine, with an older mirror */
        return false;
    }
    answered_ = true;
    verify();
    count(response);
    if (response.search.epoch < meta_->epoch)
        VgCatchUpMirror(index_, lane_, response.search.epoch);
    return true;
}

void Nodes::count(const Response &response)
{
    VgStats *stats = VgStatsOf(RelationGetRelid(index_));
    if (stats != nullptr)
        VgCountSearch(stats, response, verify_ns_, response.count, dropped_);
    verify_ns_ = dropped_ = 0;
}

void Nodes::done()
{
    if (!answered_ || verify_ns_ == 0)
        return;
    VgStats *stats = VgStatsOf(RelationGetRelid(index_));
    if (stats != nullptr)
        stats->rerank_ns.fetch_add(verify_ns_, std::memory_order_relaxed);
    verify_ns_ = 0;
}

/* Whether the index has another generation than the one that this scan reads. */
bool Nodes::moved_on() const
{
    Meta now;
    VgReadMeta(index_, &now);
    return now.generation != meta_->generation;
}

/* The k nearest into hits_. False: this scan has left the engine. */
bool Nodes::ask(uint32_t k)
{
    if (demand_.sweep_after == 0)
        form_ = SearchForm::Exact;
    VgFallback reason = VgFallback::None;
    /* A mirror that was just loaded can have been replaced by that of a rebuilt graph, or dropped. */
    for (int round = 0; round < 5; round++) {
        reason = VgReachEngine(vg_fallback ? VgPatience::Ask : VgPatience::Wait, &lane_);
        if (reason == VgFallback::None && ask_once(k, &reason))
            return true;
        bool mirror = reason == VgFallback::Cold || reason == VgFallback::Behind || reason == VgFallback::Loading;
        if (mirror && moved_on()) {
            /* The graph was built anew under this scan, which only the pages remember. Nothing that failed, and nothing to wait for. */
            on_engine_ = false;
            VgCountFallback(RelationGetRelid(index_), VgFallback::Behind);
            return false;
        }
        if (mirror && vg_fallback)
            VgRequestMirror(index_, *meta_, lane_);
        if (vg_fallback)
            break;
        if (mirror) {
            MirrorLoad load;
            VgFallback failed = VgLoadMirror(index_, lane_, true, &load);
            if (failed == VgFallback::Cold)
                continue; /* an eviction, or a newer load, came between: as if it had come just before this search */
            if (failed != VgFallback::None) {
                reason = failed;
                break;
            }
        } else if (reason != VgFallback::Lost && reason != VgFallback::NoSlot) {
            break;
        }
    }
    leave(reason);
    return false;
}

/* From here on, the pages. */
void Nodes::leave(VgFallback reason)
{
    on_engine_ = false;
    if (reason == VgFallback::NoDevice) {
        if (vg_device == kDeviceAuto)
            return;
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE), errmsg("no GPU can be used"),
                        errdetail("%s", VgNoGpuReason()), errhint("Set vecgpu.device to auto or cpu.")));
    }
    VgCountFallback(RelationGetRelid(index_), reason);
    if (!vg_fallback)
        ereport(ERROR, (errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
                        errmsg("could not search index \"%s\" on the device: %s", RelationGetRelationName(index_),
                               VgFallbackName(reason)),
                        errhint("With vecgpu.fallback = on such searches are answered from the pages.")));
    ereport(vg_log_fallbacks ? LOG : DEBUG1,
            (errmsg("searching index \"%s\" without the device: %s", RelationGetRelationName(index_),
                    VgFallbackName(reason))));
}

} // namespace vecgpu
