/*
 * resident.cu: the host side of kernels that stay, see resident.h.
 */
#include "resident.h"

#include <algorithm>
#include <cstring>

namespace vecgpu::cuda {

namespace {

/* A search takes a tenth of a millisecond; from here on somebody should ask whether the device still works. */
constexpr uint64_t kUnusual = 5'000'000;
constexpr uint64_t kPatience = 2'000'000'000;

constexpr ptrdiff_t kMostStaying = 4; /* kernels of 8 blocks: a quarter of an H200 */

} // namespace

Resident::Resident(uint32_t boxes)
{
    box_.allocate(boxes);
    memset(static_cast<void *>(box_.data()), 0, boxes * sizeof(Mailbox));
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

void Residents::add(Resident *resident)
{
    std::lock_guard<std::mutex> lock(changing_);
    all_.push_back(resident);
}

void Residents::remove(Resident *resident)
{
    std::lock_guard<std::mutex> lock(changing_);
    std::erase(all_, resident);
}

/* Resident::start() counts its kernel first and asks may_stay() then, so one of the two sees the other. */
Residents::Away::Away(Residents &residents) : residents_(residents)
{
    residents.away_++;
    std::lock_guard<std::mutex> lock(residents.changing_);
    for (Resident *resident : residents.all_)
        resident->dismiss();
}

bool Residents::may_stay()
{
    if (away_.load() != 0)
        return false;
    std::lock_guard<std::mutex> lock(changing_);
    return std::count_if(all_.begin(), all_.end(), [](const Resident *other) { return other->here(); }) < kMostStaying;
}

} // namespace vecgpu::cuda
