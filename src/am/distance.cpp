/*
 * distance.cpp: the SQL distance functions on real[].
 *
 * The kernels do not look for NaN and infinity: any of them makes the sum not finite, and only then are the arguments
 * searched for the element to complain about.
 */
#include <cmath>

#include "am/am.h"

extern "C" {
PG_FUNCTION_INFO_V1(vecgpu_l2_distance);
PG_FUNCTION_INFO_V1(vecgpu_inner_product);
PG_FUNCTION_INFO_V1(vecgpu_negative_inner_product);
PG_FUNCTION_INFO_V1(vecgpu_cosine_distance);
PG_FUNCTION_INFO_V1(vecgpu_l1_distance);
}

namespace vecgpu {

template <double (*distance)(const float *, const float *, uint32_t)>
static double Apply(FunctionCallInfo fcinfo)
{
    VgVector a = VgReadRealArray(PG_GETARG_DATUM(0));
    VgVector b = VgReadRealArray(PG_GETARG_DATUM(1));
    if (a.dimensions != b.dimensions)
        ereport(ERROR, (errcode(ERRCODE_DATA_EXCEPTION),
                        errmsg("different vector dimensions %u and %u", a.dimensions, b.dimensions)));
    double result = distance(a.data, b.data, a.dimensions);
    if (!std::isfinite(result)) {
        VgCheckFinite(a.data, a.dimensions);
        VgCheckFinite(b.data, b.dimensions);
    }
    VgReleaseVector(&a);
    VgReleaseVector(&b);
    return result;
}

} // namespace vecgpu

extern "C" {

Datum vecgpu_l2_distance(PG_FUNCTION_ARGS)
{
    PG_RETURN_FLOAT8(vecgpu::Apply<vecgpu::l2_distance>(fcinfo));
}

Datum vecgpu_inner_product(PG_FUNCTION_ARGS)
{
    PG_RETURN_FLOAT8(vecgpu::Apply<vecgpu::inner_product>(fcinfo));
}

Datum vecgpu_negative_inner_product(PG_FUNCTION_ARGS)
{
    PG_RETURN_FLOAT8(0.0 - vecgpu::Apply<vecgpu::inner_product>(fcinfo)); /* never -0 */
}

Datum vecgpu_cosine_distance(PG_FUNCTION_ARGS)
{
    PG_RETURN_FLOAT8(vecgpu::Apply<vecgpu::cosine_distance>(fcinfo));
}

Datum vecgpu_l1_distance(PG_FUNCTION_ARGS)
{
    PG_RETURN_FLOAT8(vecgpu::Apply<vecgpu::l1_distance>(fcinfo));
}
}
