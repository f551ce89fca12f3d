/*
 * compat.h: every difference between the supported PostgreSQL versions (15 to 18), one sentence each.
 */
#pragma once

#if PG_VERSION_NUM < 150000
#error "vecgpu needs PostgreSQL 15 or later"
#endif

/* 18 tells vacuum_delay_point whether it is called from ANALYZE. */
#if PG_VERSION_NUM >= 180000
#define VgVacuumDelayPoint() vacuum_delay_point(false)
#else
#define VgVacuumDelayPoint() vacuum_delay_point()
#endif

/* 16 renamed relation file nodes to locators. */
#if PG_VERSION_NUM >= 160000
#define VgFileNumber RelFileNumber
#define VgFileNumberOf(relation) ((relation)->rd_locator.relNumber)
#define VgLocatorOf(relation) ((relation)->rd_locator)
#else
#define VgFileNumber Oid
#define VgFileNumberOf(relation) ((relation)->rd_node.relNode)
#define VgLocatorOf(relation) ((relation)->rd_node)
#endif

/* 16 renamed the sub-transaction in which a relation got its file. */
#if PG_VERSION_NUM >= 160000
#define VgNewFileInTransaction(relation) ((relation)->rd_firstRelfilelocatorSubid != InvalidSubTransactionId)
#else
#define VgNewFileInTransaction(relation) ((relation)->rd_firstRelfilenodeSubid != InvalidSubTransactionId)
#endif

/* 17 replaced backend ids, which start at 1, by process numbers, which start at 0. */
#if PG_VERSION_NUM >= 170000
#define VgProcessNumber() ((uint32_t) MyProcNumber)
#else
#define VgProcessNumber() ((uint32_t) MyBackendId)
#endif

/* From 16 on one generic call checks ownership. */
#if PG_VERSION_NUM >= 160000
#define VgOwnsClass(oid) object_ownercheck(RelationRelationId, (oid), GetUserId())
#else
#define VgOwnsClass(oid) pg_class_ownercheck((oid), GetUserId())
#endif

/* 18 lets an index scan count into the executor's instrumentation. */
#if PG_VERSION_NUM >= 180000
#define VgIndexBeginScan(heap, index, snapshot, orderbys) index_beginscan(heap, index, snapshot, nullptr, 0, orderbys)
#else
#define VgIndexBeginScan(heap, index, snapshot, orderbys) index_beginscan(heap, index, snapshot, 0, orderbys)
#endif

/* From 17 on, maintenance code runs with a search_path of its own. */
#if PG_VERSION_NUM >= 170000
#define VgRestrictSearchPath() RestrictSearchPath()
#else
#define VgRestrictSearchPath() ((void) 0)
#endif

/* Before 17, a flag says what the process is. */
#if PG_VERSION_NUM < 170000
#define AmBackgroundWorkerProcess() (IsBackgroundWorker)
#endif

/* 16 renamed the parts of a locator. */
#if PG_VERSION_NUM >= 160000
#define VgTablespaceOf(relation) ((relation)->rd_locator.spcOid)
#define VgDatabaseOf(relation) ((relation)->rd_locator.dbOid)
#else
#define VgTablespaceOf(relation) ((relation)->rd_node.spcNode)
#define VgDatabaseOf(relation) ((relation)->rd_node.dbNode)
#endif

/* Path of a relation's main fork, relative to the data directory; 18 returns it by value. */
#if PG_VERSION_NUM >= 180000
#define VgCopyPath(relation, out, size) strlcpy(out, relpathperm(VgLocatorOf(relation), MAIN_FORKNUM).str, size)
#else
#define VgCopyPath(relation, out, size)                                 \
    do {                                                                \
        char *vg_path = relpathperm(VgLocatorOf(relation), MAIN_FORKNUM); \
        strlcpy(out, vg_path, size);                                    \
        pfree(vg_path);                                                 \
    } while (0)
#endif

/* From 17 on an extension names its wait events. */
#if PG_VERSION_NUM >= 170000
#define VgNewWaitEvent(name) WaitEventExtensionNew(name)
#else
#define VgNewWaitEvent(name) PG_WAIT_EXTENSION
#endif
