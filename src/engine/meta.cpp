/*
 * meta.cpp: see meta.h.
 */
#include "engine/meta.h"

#include <algorithm>
#include <cmath>

namespace vecgpu {

const char *meta_fault(const Meta &meta, const IndexKey &key)
{
    if (const char *fault = meta_fault(meta))
        return fault;
    if (meta.incarnation != key.incarnation || meta.generation != key.generation)
        return "the metapage is of another index";
    if (meta.dimensions == 0)
        return "the index has no dimensions yet";
    if (meta.kind == IndexKind::Hnsw && meta.upper > max_nodes(meta.cell_width))
        return "upper record count out of range";
    if (!std::isfinite(meta.max_norm) || meta.max_norm < 0)
        return "largest norm out of range";
    return nullptr;
}

namespace {

uint32_t with_slack(uint32_t count, uint8_t cell_width)
{
    uint64_t roomy = static_cast<uint64_t>(count) + count / 8 + 1024;
    return static_cast<uint32_t>(std::min<uint64_t>(roomy, max_nodes(cell_width)));
}

} // namespace

MirrorShape shape_with_slack(const Meta &meta, Storage storage)
{
    bool graph = meta.kind == IndexKind::Hnsw;
    MirrorShape shape = {};
    shape.kind = meta.kind;
    shape.metric = meta.metric;
    shape.storage = storage;
    shape.cell_width = meta.cell_width;
    shape.dimensions = meta.dimensions;
    shape.m = meta.m;
    shape.nodes = with_slack(meta.nodes, meta.cell_width);
    shape.upper = graph ? with_slack(meta.upper, meta.cell_width) : 0;
    return shape;
}

bool shape_holds(const MirrorShape &shape, const Meta &meta)
{
    return shape.kind == meta.kind && shape.metric == meta.metric && shape.cell_width == meta.cell_width &&
           shape.dimensions == meta.dimensions && shape.m == meta.m && shape.nodes >= meta.nodes &&
           (meta.kind == IndexKind::Flat || shape.upper >= meta.upper);
}

MirrorState state_of_meta(const Meta &meta)
{
    MirrorState state = {};
    state.nodes = meta.nodes;
    if (meta.kind == IndexKind::Hnsw) {
        state.upper = meta.upper;
        state.entry_handle = meta.entry_handle;
        state.entry_level = meta.entry_level;
    } else {
        state.entry_handle = kNone;
    }
    state.max_norm = meta.max_norm;
    return state;
}

} // namespace vecgpu
