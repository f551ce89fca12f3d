/*
 * open.cpp: see open.h.
 */
#include "worker/open.h"

namespace vecgpu {

Relation VgOpenWithoutWaiting(Oid oid, LOCKMODE mode)
{
    if (!ConditionalLockRelationOid(oid, mode))
        return nullptr;
    HeapTuple tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(oid));
    bool ours = false;
    if (HeapTupleIsValid(tuple)) {
        Form_pg_class form = reinterpret_cast<Form_pg_class>(GETSTRUCT(tuple));
        ours = form->relkind == RELKIND_INDEX && form->relam == get_index_am_oid("vecgpu", true);
        ReleaseSysCache(tuple);
    }
    if (ours)
        return index_open(oid, NoLock);
    UnlockRelationOid(oid, mode);
    return nullptr;
}

} // namespace vecgpu
