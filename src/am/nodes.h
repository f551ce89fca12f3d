/*
 * nodes.h: the nodes of an index, nearest first, for one scan: from the engine while it answers, from the pages otherwise.
 *
 * What the engine says is a list of candidates (law 4 of the design): each is looked up on the pages, and its key computed there by the kernel
 * that the pages' own search uses, before it goes out. So a mirror that is old or wrong can cost a candidate and never
 * returns a wrong row or a wrong order. Nodes that are newer than the mirror are read from the pages.
 *
 * Whatever fails, the same scan goes on over the pages, without what it returned already.
 */
#pragma once

#include "am/am.h"
#include "client/call.h"
#include "core/search.h"
#include "page/graph.h"

namespace vecgpu {

/* How a scan wants its nodes. */
struct NodeDemand {
    uint32_t ef;
    uint64_t sweep_after; /* core/search.h; 0: all nodes in exact order */
    uint64_t rows;        /* that the scan will want at least; 0: not known */
    bool all;             /* it will want every row */
    bool look_ahead;
};

class Nodes {
public:
    /* `source` must have been set up; it and `meta` outlive this. Memory comes from `context`. */
    void init(Relation index, const Meta *meta, PageSource *source, MemoryContext context, const NodeDemand &demand);

    /* The next node; false when every node has come out. */
    bool next(uint32_t *slot, float *key);

    /* From now on in exact order, at the price of a look at all nodes. */
    void sweep_soon();

    uint64_t emitted() const { return emitted_; }

    /* The scan ends or starts anew: what is still to be counted. */
    void done();

private:
    bool wants_engine() const;
    SearchForm first_form() const;
    bool next_from_engine(uint32_t *slot, float *key);
    bool take(uint32_t *slot, float *key);
    bool ask(uint32_t k);
    bool ask_once(uint32_t k, VgFallback *reason);
    bool accept(const Response &response);
    void verify();
    void add(const uint32_t *slots, uint32_t n, bool from_mirror);
    void read_tail(uint32_t nodes, uint32_t twins);
    void leave(VgFallback reason);
    bool moved_on() const;
    void start_stream();
    void count(const Response &response);

    Relation index_;
    const Meta *meta_;
    PageSource *source_;
    MemoryContext context_;
    NodeDemand demand_;
    uint64_t emitted_;

    /* engine */
    bool on_engine_;
    Lane lane_;
    SearchForm form_; /* asked for next; Auto until the engine has answered exactly once */
    uint32_t width_;  /* nodes asked for last */
    bool complete_;   /* whatever is not waiting has gone out */
    bool answered_;   /* once at least */
    Hit *hits_;       /* of the last answer, by the device's key */
    uint32_t hits_count_, hits_checked_, hits_capacity_;
    LazyHeap waiting_; /* with keys from the pages */
    VisitedSet known_; /* waiting or gone out */
    uint32_t *out_;    /* gone out */
    uint64_t out_count_, out_capacity_;
    uint32_t tail_from_, tail_twins_;
    float error_;     /* by which keys of the device may be off, as a share of `scale_` and the key */
    float scale_;
    uint64_t verify_ns_, dropped_;

    /* pages */
    bool stream_ready_, skipping_;
    Stream<PageSource> stream_;
    VisitedSet skip_;
};

} // namespace vecgpu
