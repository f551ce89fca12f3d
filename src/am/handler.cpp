/*
 * handler.cpp: the table of callbacks and their small ones: properties and phase names.
 */
#include "am/am.h"

#include "am/phases.h"

extern "C" {
PG_FUNCTION_INFO_V1(vecgpu_handler);
}

namespace vecgpu {

static bool Property(Oid index_oid, int attribute, IndexAMProperty property, const char *name, bool *result,
                     bool *isnull)
{
    (void) index_oid;
    (void) name;
    (void) isnull;
    /* Core answers the others; this one it leaves to the access method. */
    if (property != AMPROP_DISTANCE_ORDERABLE || attribute == 0)
        return false;
    *result = true;
    return true;
}

static char *PhaseName(int64 phase)
{
    switch (phase) {
        case PROGRESS_CREATEIDX_SUBPHASE_INITIALIZE:
            return const_cast<char *>("initializing");
        case kPhaseLoad:
            return const_cast<char *>("loading vectors");
        case kPhaseTwins:
            return const_cast<char *>("grouping equal vectors");
        case kPhaseGraph:
            return const_cast<char *>("building graph");
        case kPhaseConnect:
            return const_cast<char *>("connecting graph");
        case kPhaseWrite:
            return const_cast<char *>("writing pages");
        default:
            return nullptr;
    }
}

static void FillRoutine(IndexAmRoutine *routine)
{
    routine->amstrategies = 0;
    routine->amsupport = 1;
    routine->amoptsprocnum = 0;
    routine->amcanorder = false;
    routine->amcanorderbyop = true;
    routine->amcanbackward = false;
    routine->amcanunique = false;
    routine->amcanmulticol = false;
    routine->amoptionalkey = true; /* else a pure ORDER BY never gets a path */
    routine->amsearcharray = false;
    routine->amsearchnulls = false;
    routine->amstorage = false;
    routine->amclusterable = false;
    routine->ampredlocks = false;
    routine->amcanparallel = false;
    routine->amcaninclude = false;
    routine->amusemaintenanceworkmem = false; /* VACUUM needs little memory besides a rebuild's */
    routine->amparallelvacuumoptions = VACUUM_OPTION_PARALLEL_BULKDEL;
    routine->amkeytype = InvalidOid;

    routine->ambuild = VgBuild;
    routine->ambuildempty = VgBuildEmpty;
    routine->aminsert = VgInsert;
    routine->ambulkdelete = VgBulkDelete;
    routine->amvacuumcleanup = VgVacuumCleanup;
    routine->amcanreturn = nullptr;
    routine->amcostestimate = VgCostEstimate;
    routine->amoptions = VgParseOptions;
    routine->amproperty = Property;
    routine->ambuildphasename = PhaseName;
    routine->amvalidate = VgValidate;
    routine->amadjustmembers = nullptr;
    routine->ambeginscan = VgBeginScan;
    routine->amrescan = VgRescan;
    routine->amgettuple = VgGetTuple;
    routine->amgetbitmap = nullptr;
    routine->amendscan = VgEndScan;
    routine->ammarkpos = nullptr;
    routine->amrestrpos = nullptr;
    routine->amestimateparallelscan = nullptr;
    routine->aminitparallelscan = nullptr;
    routine->amparallelrescan = nullptr;
}

} // namespace vecgpu

extern "C" Datum vecgpu_handler(PG_FUNCTION_ARGS)
{
    (void) fcinfo;
    IndexAmRoutine *routine = makeNode(IndexAmRoutine);
    vecgpu::FillRoutine(routine);
    PG_RETURN_POINTER(routine);
}
