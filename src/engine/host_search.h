/*
 * host_search.h: the search forms of the host device.
 *
 * This is the reference that other devices are compared with, and what a session runs through when there is no GPU. One call
 * searches a batch on the calling thread. All memory comes from the stream's arena, so that nothing is allocated for a query
 * once it is warm.
 *
 * Exact: the keys (core/distance.h) of all returnable nodes, the k lowest by (key, slot).
 * Graph: the stream of core/search.h, with the rules by which the scan over the pages starts it (am/scan.cpp), so that the
 * candidates are those of the CPU for the same ef: the k first returnable nodes, then in order. The form turns into Exact
 *   - if ef is a 32nd of the nodes or more, as on the pages, or there is no graph;
 *   - if a filter leaves so few nodes that looking at all of them is cheaper than the walk;
 *   - if the walk has cost a quarter of all keys without an end, or the graph led no further: as on the pages, except that nodes
 *     that cannot be returned are not looked at.
 * So neither deletions nor filters nor damaged links cap the answer.
 *
 * A node is returnable if its filter bit is set and its row is live or has twins: the mirror does not hold those, so the session
 * decides. kRowKilled does not matter here: it binds sessions of the primary only, so the session decides about that too.
 */
#pragma once

#include "core/memory.h"
#include "engine/host_mirror.h"

#include <vector>

namespace vecgpu {

constexpr uint32_t kHostMaxBatch = 64;

/*
 * Bump memory; reset() makes all of it free again. Throws std::bad_alloc. What one batch needed is one piece for the next, up
 * to kKeepBytes: a search that wanted more gives it back.
 */
class SearchArena {
public:
    SearchArena() = default;
    SearchArena(const SearchArena &) = delete;
    SearchArena &operator=(const SearchArena &) = delete;
    ~SearchArena();

    void *allocate(size_t bytes);
    void reset();

    /* For core: release() does nothing. */
    Allocator allocator();

    /* What is held now; for tests. */
    size_t held() const;

private:
    static constexpr size_t kFirstBytes = size_t(1) << 20;
    static constexpr size_t kKeepBytes = size_t(64) << 20;

    struct Piece {
        uint8_t *memory;
        size_t bytes;
    };

    std::vector<Piece> pieces_;
    size_t used_ = 0; /* of the last piece */
};

/*
 * Searches for all of `queries`, at most kHostMaxBatch; the parameters were checked against the mirror. Throws std::bad_alloc;
 * queries for which `finished` was called are complete then. `each`, if not null, gets every query before `finished` does.
 */
void host_search(SearchArena &arena, const HostMirror &mirror, const BatchParams &params, const BatchQuery *queries,
                 uint32_t count, void (*each)(void *, const BatchQuery &), void *each_context, BatchFinished finished,
                 void *context);

} // namespace vecgpu
