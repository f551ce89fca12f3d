/*
 * pg.h: the door to PostgreSQL: the one place that includes its headers.
 *
 * C++ standard headers must come before this one (port.h redefines printf and others).
 * Rules behind the door: palloc and memory contexts only, no owning C++ object alive across a call that can
 * ereport (a longjmp skips destructors), no exceptions.
 */
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wsign-compare"
extern "C" {
#include <postgres.h>

#include <access/amapi.h>
#include <access/generic_xlog.h>
#include <access/genam.h>
#include <access/heapam.h>
#include <access/htup_details.h>
#include <access/reloptions.h>
#include <access/rmgr.h>
#include <access/relscan.h>
#include <access/table.h>
#include <access/tableam.h>
#include <access/transam.h>
#include <access/xact.h>
#include <access/xlog.h>
#include <access/xloginsert.h>
#include <access/amvalidate.h>
#include <catalog/catalog.h>
#include <catalog/index.h>
#include <catalog/namespace.h>
#include <catalog/pg_am.h>
#include <catalog/pg_amop.h>
#include <catalog/pg_amproc.h>
#include <catalog/pg_class.h>
#include <catalog/pg_collation.h>
#include <catalog/pg_opclass.h>
#include <catalog/pg_operator.h>
#include <catalog/pg_opfamily.h>
#include <catalog/pg_type.h>
#include <commands/dbcommands.h>
#include <commands/defrem.h>
#include <commands/progress.h>
#include <commands/vacuum.h>
#include <common/pg_prng.h>
#include <executor/executor.h>
#include <executor/spi.h>
#include <fmgr.h>
#include <funcapi.h>
#include <miscadmin.h>
#include <nodes/execnodes.h>
#include <nodes/pathnodes.h>
#include <optimizer/cost.h>
#include <optimizer/optimizer.h>
#include <optimizer/plancat.h>
#include <pgstat.h>
#include <postmaster/bgworker.h>
#include <postmaster/interrupt.h>
#include <storage/buf_internals.h>
#include <storage/bufmgr.h>
#include <storage/fd.h>
#include <storage/freespace.h>
#include <storage/indexfsm.h>
#include <storage/ipc.h>
#include <storage/latch.h>
#include <storage/lmgr.h>
#include <storage/proc.h>
#include <storage/pmsignal.h>
#include <storage/procarray.h>
#include <storage/smgr.h>
#include <tcop/tcopprot.h>
#include <utils/acl.h>
#include <utils/array.h>
#include <utils/builtins.h>
#include <utils/datum.h>
#include <utils/float.h>
#include <utils/fmgroids.h>
#include <utils/guc.h>
#include <utils/lsyscache.h>
#include <utils/memutils.h>
#include <utils/pidfile.h>
#include <utils/regproc.h>
#include <utils/rel.h>
#include <utils/selfuncs.h>
#include <utils/snapmgr.h>
#include <utils/spccache.h>
#include <utils/syscache.h>
#include <utils/typcache.h>
}
#pragma GCC diagnostic pop

/* Macros of PostgreSQL that break C++ code. */
#undef Min
#undef Max
#undef Abs
#undef _
#undef foreach_delete_current

#include "pg/compat.h"
