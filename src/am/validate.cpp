/*
 * validate.cpp: checks an operator class: one ordering operator that returns float8, one support function.
 */
#include "am/am.h"

namespace vecgpu {

bool VgValidate(Oid opclass_oid)
{
    HeapTuple tuple = SearchSysCache1(CLAOID, ObjectIdGetDatum(opclass_oid));
    if (!HeapTupleIsValid(tuple))
        elog(ERROR, "cache lookup failed for operator class %u", opclass_oid);
    Form_pg_opclass form = reinterpret_cast<Form_pg_opclass>(GETSTRUCT(tuple));
    Oid family = form->opcfamily;
    Oid type = form->opcintype;
    char *name = pstrdup(NameStr(form->opcname));
    ReleaseSysCache(tuple);

    bool result = true;
    bool has_operator = false;
    bool has_support = false;

    CatCList *operators = SearchSysCacheList1(AMOPSTRATEGY, ObjectIdGetDatum(family));
    for (int i = 0; i < operators->n_members; i++) {
        Form_pg_amop member = reinterpret_cast<Form_pg_amop>(GETSTRUCT(&operators->members[i]->tuple));
        if (member->amopstrategy != 1 || member->amoppurpose != AMOP_ORDER) {
            ereport(INFO, (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
                           errmsg("operator class \"%s\" of access method %s contains operator %s with invalid strategy "
                                  "number %d",
                                  name, "vecgpu", format_operator(member->amopopr), member->amopstrategy)));
            result = false;
            continue;
        }
        if (!check_amop_signature(member->amopopr, FLOAT8OID, member->amoplefttype, member->amoprighttype) ||
            !opfamily_can_sort_type(member->amopsortfamily, FLOAT8OID)) {
            ereport(INFO, (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
                           errmsg("operator class \"%s\" of access method %s contains invalid ORDER BY specification for "
                                  "operator %s",
                                  name, "vecgpu", format_operator(member->amopopr))));
            result = false;
        }
        if (member->amoplefttype == type && member->amoprighttype == type)
            has_operator = true;
    }
    ReleaseCatCacheList(operators);

    CatCList *functions = SearchSysCacheList1(AMPROCNUM, ObjectIdGetDatum(family));
    for (int i = 0; i < functions->n_members; i++) {
        Form_pg_amproc member = reinterpret_cast<Form_pg_amproc>(GETSTRUCT(&functions->members[i]->tuple));
        if (member->amprocnum != 1 ||
            !check_amproc_signature(member->amproc, INTERNALOID, true, 1, 1, INTERNALOID)) {
            ereport(INFO, (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
                           errmsg("operator class \"%s\" of access method %s contains function %s with wrong signature or "
                                  "support number %d",
                                  name, "vecgpu", format_procedure(member->amproc), member->amprocnum)));
            result = false;
        }
        if (member->amproclefttype == type && member->amprocrighttype == type)
            has_support = true;
    }
    ReleaseCatCacheList(functions);

    if (!has_operator || !has_support) {
        ereport(INFO, (errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
                       errmsg("operator class \"%s\" of access method %s is missing %s", name, "vecgpu",
                              has_operator ? "support function 1" : "its ordering operator")));
        result = false;
    }
    return result;
}

} // namespace vecgpu
