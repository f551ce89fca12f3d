/*
 * handle.h: owners of descriptors and mappings.
 */
#pragma once

#include <cstddef>
#include <utility>

#include <sys/mman.h>
#include <unistd.h>

namespace vecgpu {

class FileHandle {
public:
    FileHandle() = default;
    explicit FileHandle(int fd) : fd_(fd) {}
    FileHandle(FileHandle &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    FileHandle &operator=(FileHandle &&other) noexcept
    {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~FileHandle() { reset(); }

    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    void reset()
    {
        if (fd_ >= 0)
            close(fd_);
        fd_ = -1;
    }

private:
    int fd_ = -1;
};

class Mapping {
public:
    Mapping() = default;
    Mapping(void *memory, size_t bytes) : memory_(memory), bytes_(bytes) {}
    Mapping(Mapping &&other) noexcept
        : memory_(std::exchange(other.memory_, nullptr)), bytes_(std::exchange(other.bytes_, 0))
    {
    }
    Mapping &operator=(Mapping &&other) noexcept
    {
        std::swap(memory_, other.memory_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Mapping()
    {
        if (memory_ != nullptr)
            munmap(memory_, bytes_);
    }

    void *memory() const { return memory_; }
    size_t bytes() const { return bytes_; }

private:
    void *memory_ = nullptr;
    size_t bytes_ = 0;
};

} // namespace vecgpu
