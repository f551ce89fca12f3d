/*
 * options.cpp: WITH options of an index and the settings of a session.
 */
#include "am/am.h"

namespace vecgpu {

int vg_ef_search = 0;
int vg_iterative_scan = kStrictOrder;
int vg_flush_rows = 10000;

static relopt_kind option_kind;

static relopt_enum_elt_def kind_values[] = {
    {"hnsw", static_cast<int>(IndexKind::Hnsw)}, {"flat", static_cast<int>(IndexKind::Flat)}, {nullptr, 0}};

static relopt_enum_elt_def storage_values[] = {{"float32", static_cast<int>(Storage::Float32)},
                                               {"float16", static_cast<int>(Storage::Float16)},
                                               {"bfloat16", static_cast<int>(Storage::BFloat16)},
                                               {"int8", static_cast<int>(Storage::Int8)},
                                               {nullptr, 0}};

static const config_enum_entry iterative_values[] = {
    {"strict_order", kStrictOrder, false}, {"relaxed_order", kRelaxedOrder, false}, {nullptr, 0, false}};

void VgInitOptions(void)
{
    option_kind = add_reloption_kind();
    add_enum_reloption(option_kind, "kind", "How the index searches.", kind_values, static_cast<int>(IndexKind::Hnsw),
                       "Valid values are \"hnsw\" and \"flat\".", AccessExclusiveLock);
    add_enum_reloption(option_kind, "storage", "How the index stores a component of a vector.", storage_values,
                       static_cast<int>(Storage::Float32),
                       "Valid values are \"float32\", \"float16\", \"bfloat16\" and \"int8\".", AccessExclusiveLock);
    add_int_reloption(option_kind, "m", "Links of a node on an upper layer; layer 0 has twice as many.", kDefaultM,
                      kLowestM, kHighestM, AccessExclusiveLock);
    add_int_reloption(option_kind, "ef_construction", "Width of the search for the neighbours of a new node.",
                      kDefaultEfConstruction, kMinEfConstruction, kMaxEfConstruction, AccessExclusiveLock);
    add_int_reloption(option_kind, "dimensions", "Dimensions of the vectors; 0 takes those of the first row.", 0, 0,
                      static_cast<int>(kMaxDimensions), AccessExclusiveLock);
    add_int_reloption(option_kind, "ef_search", "Default of vecgpu.ef_search for this index; 0 is 40.", 0, 0,
                      kMaxEfSearch, AccessExclusiveLock);

    DefineCustomIntVariable("vecgpu.ef_search", "Width of an index search: higher finds more, slower.",
                            "0 takes the option ef_search of the index, or 40.", &vg_ef_search, 0, 0, kMaxEfSearch,
                            PGC_USERSET, 0, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable("vecgpu.iterative_scan", "How far a scan that goes on beyond ef_search rows looks ahead.",
                             "strict_order looks ahead, so that hardly a row is found too late; relaxed_order does not, "
                             "which is faster. Rows found too late come last.",
                             &vg_iterative_scan, kStrictOrder, iterative_values, PGC_USERSET, 0, nullptr, nullptr,
                             nullptr);
    DefineCustomIntVariable("vecgpu.flush_rows", "Waiting rows at which an insert asks for a flush.",
                            "0 leaves flushing to VACUUM and vecgpu_flush().", &vg_flush_rows, 10000, 0, 10000000,
                            PGC_USERSET, 0, nullptr, nullptr, nullptr);
    MarkGUCPrefixReserved("vecgpu");
}

bytea *VgParseOptions(Datum reloptions, bool validate)
{
    static const relopt_parse_elt table[] = {
        {"kind", RELOPT_TYPE_ENUM, offsetof(VgOptions, kind)},
        {"storage", RELOPT_TYPE_ENUM, offsetof(VgOptions, storage)},
        {"m", RELOPT_TYPE_INT, offsetof(VgOptions, m)},
        {"ef_construction", RELOPT_TYPE_INT, offsetof(VgOptions, ef_construction)},
        {"dimensions", RELOPT_TYPE_INT, offsetof(VgOptions, dimensions)},
        {"ef_search", RELOPT_TYPE_INT, offsetof(VgOptions, ef_search)},
    };
    bytea *result = static_cast<bytea *>(
        build_reloptions(reloptions, validate, option_kind, sizeof(VgOptions), table, lengthof(table)));
    if (validate && result != nullptr) {
        const VgOptions *options = reinterpret_cast<const VgOptions *>(result);
        if (options->ef_construction < 2 * options->m)
            ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
                            errmsg("ef_construction must be greater than or equal to 2 * m")));
    }
    return result;
}

VgOptions VgOptionsOf(Relation index)
{
    if (index->rd_options != nullptr)
        return *reinterpret_cast<const VgOptions *>(index->rd_options);
    VgOptions options = {};
    options.kind = static_cast<int>(IndexKind::Hnsw);
    options.storage = static_cast<int>(Storage::Float32);
    options.m = kDefaultM;
    options.ef_construction = kDefaultEfConstruction;
    return options;
}

int VgEfSearch(Relation index)
{
    if (vg_ef_search > 0)
        return vg_ef_search;
    int ef = VgOptionsOf(index).ef_search;
    return ef > 0 ? ef : kDefaultEfSearch;
}

} // namespace vecgpu
