/*
 * buffer.h: memory with an owner: on the device, and pinned on the host.
 */
#pragma once

#include "status.h"

#include <utility>

namespace vecgpu::cuda {

/* `count` elements in device memory, uninitialized. */
template <class T>
class DeviceBuffer {
public:
    DeviceBuffer() = default;
    explicit DeviceBuffer(size_t count) { allocate(count); }
    DeviceBuffer(DeviceBuffer &&other) noexcept { swap(other); }
    DeviceBuffer &operator=(DeviceBuffer &&other) noexcept
    {
        swap(other);
        return *this;
    }
    ~DeviceBuffer() { release(); }

    void allocate(size_t count)
    {
        release();
        void *memory = nullptr;
        check(cudaMalloc(&memory, (count ? count : 1) * sizeof(T)), "allocation");
        data_ = static_cast<T *>(memory);
        count_ = count;
    }

    /* Grows, losing the content; never shrinks. For workspace whose size depends on the largest mirror. */
    void reserve(size_t count)
    {
        if (count > count_)
            allocate(count + count / 8);
    }

    void release()
    {
        if (data_)
            cudaFree(data_);
        data_ = nullptr;
        count_ = 0;
    }

    T *data() const { return data_; }
    size_t count() const { return count_; }

private:
    void swap(DeviceBuffer &other)
    {
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
    }

    T *data_ = nullptr;
    size_t count_ = 0;
};

/* Page-locked host memory that kernels can address too. */
template <class T>
class PinnedBuffer {
public:
    PinnedBuffer() = default;
    PinnedBuffer(const PinnedBuffer &) = delete;
    PinnedBuffer &operator=(const PinnedBuffer &) = delete;
    ~PinnedBuffer() { release(); }

    void reserve(size_t count)
    {
        if (count <= count_)
            return;
        release();
        allocate(count + count / 8);
    }

    void release()
    {
        if (data_)
            cudaFreeHost(data_);
        data_ = nullptr;
        count_ = 0;
    }

    void allocate(size_t count)
    {
        void *memory = nullptr;
        check(cudaHostAlloc(&memory, (count ? count : 1) * sizeof(T), cudaHostAllocPortable | cudaHostAllocMapped),
              "allocation of pinned memory");
        data_ = static_cast<T *>(memory);
        count_ = count;
    }

    T *data() const { return data_; }
    size_t count() const { return count_; }

private:
    T *data_ = nullptr;
    size_t count_ = 0;
};

} // namespace vecgpu::cuda
