/*
 * stats.h: what searches did on the device, counted by all sessions in one file, without shared_preload_libraries.
 *
 * pg_stat_tmp/vecgpu.stat is mapped into every session that counts or looks. Counters are relaxed atomics: a row that is read while others
 * count may be a few counts apart in itself. What cannot be opened or made is not counted; no query fails for it.
 */
#pragma once

#include <atomic>
#include <cstddef>

#include "client/fallback.h"
#include "pg/pg.h"
#include "protocol/message.h"

namespace vecgpu {

using VgCounter = std::atomic<uint64_t>;
static_assert(VgCounter::is_always_lock_free && sizeof(VgCounter) == 8);

/* Widths 1, 2-3, 4-7, ..., 2048 and more. */
constexpr uint32_t kWidthBuckets = 12;

/* Of one index. What every query counts is in one cache line. */
template <class Counter>
struct alignas(64) VgCounters {
    Counter queries;                      /* answered by the device */
    Counter queue_ns, copy_ns, kernel_ns; /* that they waited for: of a batch, each of its queries counts all */
    Counter rerank_ns;
    Counter candidates; /* of the device */
    Counter dropped;    /* of them, because their pages had changed */
    Counter unused;

    alignas(64) Counter batches;
    Counter width_sum; /* of the batches */
    Counter widths[kWidthBuckets];

    alignas(64) Counter fallbacks[kFallbacks];
};
using VgStats = VgCounters<VgCounter>;
using VgTotals = VgCounters<uint64_t>; /* a copy */
static_assert(sizeof(VgStats) == 320 && offsetof(VgStats, fallbacks) == 192 && sizeof(VgTotals) == sizeof(VgStats));

/* Counters of an index of this database; null if statistics are off. Cheap enough for every query; not to be kept for longer. */
VgStats *VgStatsOf(Oid index);

/* A search that the device answered. `stats` may be null. */
void VgCountSearch(VgStats *stats, const Response &response, uint64_t rerank_ns, uint64_t candidates, uint64_t dropped);

/* A search, or the rest of one, that ran on the pages. None counts nothing. */
void VgCountFallback(Oid index, VgFallback reason);

/* The file is of no use any more: the server stops. Sessions that count on begin a new one. Raises no error. */
void VgStatsRemove(void);

/* ---- for the SQL functions ---- */

struct VgStatsRow {
    Oid database; /* invalid, like index: what found no room of its own */
    Oid index;
    VgStats *stats;
};

/* Calls visit(row, argument) for every entry in use, of all databases. An index may, rarely, have two. */
void VgStatsVisit(void (*visit)(const VgStatsRow &row, void *argument), void *argument);

/* Adds a row to *totals. */
void VgStatsAdd(const VgStatsRow &row, VgTotals *totals);

/* Zeroes a row. */
void VgStatsZero(const VgStatsRow &row);

/* Zeroes a row whose index is gone, and gives its room to others. */
void VgStatsFree(const VgStatsRow &row);

} // namespace vecgpu
