/*
 * status.h: CUDA's errors, and how they leave the shared object.
 *
 * Inside, a failed call throws Failure; at the C edge guarded() turns it into a Status and a sentence. An error that
 * the context does not recover from (a fault of a kernel, ECC, a lost bus) is DeviceLost: every later call would fail
 * too.
 */
#pragma once

#include "protocol/message.h"

#include <cuda_runtime.h>

#include <cstdio>
#include <exception>
#include <new>

namespace vecgpu::cuda {

struct Failure {
    Status status;
    char text[sizeof(Response::message)];
};

[[noreturn]] void fail(Status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Throws unless `code` is success. `what` says which step it was. */
void check(cudaError_t code, const char *what);

/* After a kernel launch. */
inline void check_launch(const char *kernel)
{
    check(cudaGetLastError(), kernel);
}

void put_error(char *error, const char *text);

template <class Work>
Status guarded(char *error, Work work) noexcept
{
    try {
        work();
        return Status::Ok;
    } catch (const Failure &failure) {
        put_error(error, failure.text);
        return failure.status;
    } catch (const std::bad_alloc &) {
        put_error(error, "out of memory in the engine");
        return Status::NoMemory;
    } catch (const std::exception &other) {
        put_error(error, other.what());
        return Status::DeviceError;
    }
}

} // namespace vecgpu::cuda
