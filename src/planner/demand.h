/*
 * demand.h: how many rows the executor will ask an index scan for.
 *
 * PostgreSQL does not tell an access method about LIMIT. A hook at executor start notes, for every ordered vecgpu scan of a
 * plan, what stands above it; the scan looks itself up when its first row is asked for.
 */
#pragma once

#include "pg/pg.h"

namespace vecgpu {

struct Demand {
    bool all;       /* every row will be fetched */
    uint64_t rows;  /* else: this many at least, if known, or 0 */
    double passing; /* share of the rows that the planner expects to pass the scan's filter */
};

/* Installs the hooks. `begin_scan` tells our scans from others. */
void VgInitDemand(ambeginscan_function begin_scan);

/* What is known about a scan; {false, 0, 1} if nothing. */
Demand VgDemandOf(IndexScanDesc scan);

} // namespace vecgpu
