#include "resident.h"

#include <cstring>

namespace vecgpu::cuda {

namespace {

/* A search takes a tenth of a millisecond; from here on somebody should ask whether the device still works. */
constexpr uint64_t kUnusual = 5'000'000;
constexpr uint64_t kPatience = 2'000'000'000;

} // namespace

Resident::Resident()
{
    box_.allocate(1);
    memset(static_cast<void *>(box_.data()), 0, sizeof(Mailbox));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream");
}

Resident::~Resident()
{
    dismiss();
    cudaStreamSynchronize(stream_); /* the lease bounds it; a lost device returns at once */
    cudaStreamDestroy(stream_);
}

void Resident::dismiss()
{
    const uint64_t generation = generation_.load();
    std::atomic_ref<uint64_t> leave(box_.data()->leave);
    uint64_t before = leave.load(std::memory_order_relaxed);
    while (before < generation && !leave.compare_exchange_weak(before, generation))
        ;
}

void Resident::wait()
{
    check(cudaStreamSynchronize(stream_), "resident kernel");
}

bool Resident::has_left() const
{
    std::atomic_ref<uint64_t> left(box_.data()->left);
    return left.load(std::memory_order_acquire) == generation_.load(std::memory_order_relaxed);
}

/* False: it is time to give up. */
bool Resident::patient(uint64_t waited)
{
    if (waited < kUnusual)
        return true;
    const cudaError_t code = cudaStreamQuery(stream_);
    if (code != cudaErrorNotReady)
        check(code, "resident kernel");
    if (waited < kPatience)
        return true;
    broken_ = true;
    dismiss();
    return false;
}

} // namespace vecgpu::cuda
