#include "status.h"

#include <cstdarg>
#include <cstring>

namespace vecgpu::cuda {

void put_error(char *error, const char *text)
{
    if (error)
        snprintf(error, sizeof(Response::message), "%s", text);
}

void fail(Status status, const char *format, ...)
{
    Failure failure;
    failure.status = status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure.text, sizeof failure.text, format, arguments);
    va_end(arguments);
    throw failure;
}

void check(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    cudaGetLastError(); /* a plain error is cleared by reading it, a sticky one is not */
    if (code == cudaErrorMemoryAllocation)
        fail(Status::NoMemory, "out of device memory: %s", what);
    bool sticky = cudaFree(nullptr) != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess;
    fail(sticky ? Status::DeviceLost : Status::DeviceError, "CUDA: %s: %s", what, cudaGetErrorString(code));
}

} // namespace vecgpu::cuda
