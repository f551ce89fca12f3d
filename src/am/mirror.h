/*
 * mirror.h: copies of an index in the engine: loading, catching up, dropping.
 *
 * A mirror is named by what it is a copy of: database, tablespace, file, generation of the regions, incarnation. So a REINDEX, a TRUNCATE, a
 * rebuild, a new tablespace or a copied database never meets the mirror of another one, rolled back or not.
 */
#pragma once

#include "am/am.h"
#include "client/call.h"

namespace vecgpu {

IndexKey VgIndexKey(Relation index, const Meta &meta);

struct MirrorLoad {
    bool current;    /* there was nothing to do */
    uint64_t sent;   /* bytes read from pages */
    uint64_t bytes;  /* device memory of the mirror */
    uint64_t nodes;
};

/*
 * Brings the mirror to the state of the pages: all of them, or those changed since. `wait`: for another session that is loading it, else
 * that is Loading. None: done. The caller holds a lock on the index and a registered snapshot.
 */
VgFallback VgLoadMirror(Relation index, Lane lane, bool wait, MirrorLoad *load);

/*
 * The mirror that searches of this session would use, if it is ready; `ef` and `k` say of which search its form and times are. Never
 * starts an engine and never fails.
 */
bool VgFindMirror(Relation index, const Meta &meta, uint32_t ef, uint32_t k, MirrorEntry *entry);

/* Rows that a LIMIT of ten makes a search ask for, look-ahead included: what vecgpu_info() and vecgpu_mirrors() tell forms for. */
constexpr uint32_t kUsualK = 22;

/* Asks for a load in the background, by a worker. Cheap to call often. */
void VgRequestMirror(Relation index, const Meta &meta, Lane lane);

/* How a request hands the lane to the worker, beside the database. */
struct LoadRequest {
    Oid database;
    Lane lane;
};

/* Starts the worker. False if none can be had, or nobody else may see the index yet. */
bool VgStartLoader(Relation index, Lane lane);

/*
 * The mirror is at `epoch`, the index further on. Sends what is in between if that is little, else asks a worker.
 * Raises no error but for what reading the pages raises.
 */
void VgCatchUpMirror(Relation index, Lane lane, uint64_t epoch);

} // namespace vecgpu
