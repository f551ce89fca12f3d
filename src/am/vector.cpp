/*
 * vector.cpp: vectors in datums: real[] today, other element types by another reader.
 */
#include <cmath>

#include "am/am.h"

extern "C" {
PG_FUNCTION_INFO_V1(vecgpu_real_l2_support);
PG_FUNCTION_INFO_V1(vecgpu_real_ip_support);
PG_FUNCTION_INFO_V1(vecgpu_real_cosine_support);
}

namespace vecgpu {

VgVector VgReadRealArray(Datum datum)
{
    struct varlena *original = reinterpret_cast<struct varlena *>(DatumGetPointer(datum));
    ArrayType *array = DatumGetArrayTypeP(datum);
    VgVector vector;
    vector.owned = reinterpret_cast<void *>(array) == reinterpret_cast<void *>(original) ? nullptr : array;

    if (ARR_NDIM(array) > 1)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION), errmsg("vector must be a one-dimensional array")));
    if (ARR_HASNULL(array) && array_contains_nulls(array))
        ereport(ERROR, (errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED), errmsg("vector must not contain nulls")));
    int dimensions = ARR_NDIM(array) == 0 ? 0 : ARR_DIMS(array)[0];
    if (dimensions < 1)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION), errmsg("vector must have at least 1 dimension")));
    if (dimensions > static_cast<int>(kMaxDimensions))
        ereport(ERROR, (errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
                        errmsg("vector cannot have more than %u dimensions", kMaxDimensions)));
    vector.data = reinterpret_cast<const float *>(ARR_DATA_PTR(array));
    vector.dimensions = static_cast<uint32_t>(dimensions);
    return vector;
}

void VgCheckFinite(const float *data, uint32_t dimensions)
{
    for (uint32_t i = 0; i < dimensions; i++) {
        if (std::isnan(data[i]))
            ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION), errmsg("NaN not allowed in vector")));
        if (std::isinf(data[i]))
            ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION), errmsg("infinite value not allowed in vector")));
    }
}

void VgCheckDimensions(uint32_t expected, uint32_t actual)
{
    if (expected != actual)
        ereport(ERROR,
                (errcode(ERRCODE_DATA_EXCEPTION), errmsg("expected %u dimensions, not %u", expected, actual)));
}

bool VgIsIndexable(Metric metric, const VgVector &vector)
{
    if (metric != Metric::Cosine)
        return true;
    for (uint32_t i = 0; i < vector.dimensions; i++)
        if (vector.data[i] != 0)
            return true;
    return false;
}

const char *VgStorageName(Storage storage)
{
    switch (storage) {
        case Storage::Float16:
            return "float16";
        case Storage::BFloat16:
            return "bfloat16";
        case Storage::Int8:
            return "int8";
        default:
            return "float32";
    }
}

float VgEncode(Metric metric, Storage storage, const VgVector &vector, uint8_t *row)
{
    uint32_t bad;
    uint32_t d = vector.dimensions;
    if (encode_row(storage, vector.data, d, row, &bad) == EncodeStatus::OutOfRange)
        ereport(ERROR, (errcode(ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE),
                        errmsg("value %g is out of range for storage \"%s\"", static_cast<double>(vector.data[bad]),
                               VgStorageName(storage)),
                        errhint("Use storage float32.")));
    if (storage == Storage::Float32)
        return 0;
    float *stored = static_cast<float *>(palloc(sizeof(float) * d));
    decode_row(storage, row, d, stored);
    double error = 0;
    double norm = 0;
    for (uint32_t i = 0; i < d; i++) {
        double x = vector.data[i];
        double off = x - stored[i];
        error += off * off;
        norm += x * x;
    }
    pfree(stored);
    error = std::sqrt(error);
    if (metric == Metric::Cosine && norm > 0)
        error /= std::sqrt(norm);
    return static_cast<float>(error * 1.000001);
}

static const VgOpclass real_l2 = {Metric::L2, VgReadRealArray};
static const VgOpclass real_ip = {Metric::InnerProduct, VgReadRealArray};
static const VgOpclass real_cosine = {Metric::Cosine, VgReadRealArray};

const VgOpclass *VgOpclassOf(Relation index)
{
    Datum opclass = FunctionCall1Coll(index_getprocinfo(index, 1, 1), InvalidOid, PointerGetDatum(nullptr));
    return reinterpret_cast<const VgOpclass *>(DatumGetPointer(opclass));
}

} // namespace vecgpu

extern "C" {

Datum vecgpu_real_l2_support(PG_FUNCTION_ARGS)
{
    PG_RETURN_POINTER(&vecgpu::real_l2);
}

Datum vecgpu_real_ip_support(PG_FUNCTION_ARGS)
{
    PG_RETURN_POINTER(&vecgpu::real_ip);
}

Datum vecgpu_real_cosine_support(PG_FUNCTION_ARGS)
{
    PG_RETURN_POINTER(&vecgpu::real_cosine);
}
}
