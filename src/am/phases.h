/*
 * phases.h: sub-phases of CREATE INDEX in pg_stat_progress_create_index. Number 1 is PostgreSQL's.
 */
#pragma once

namespace vecgpu {

enum BuildPhase {
    kPhaseLoad = 2,    /* tuples: rows read */
    kPhaseTwins = 3,
    kPhaseGraph = 4,   /* tuples: nodes inserted, with a total */
    kPhaseConnect = 5,
    kPhaseWrite = 6,   /* blocks written, with a total */
};

} // namespace vecgpu
