/*
 * host_mirror.cpp: see host_mirror.h.
 */
#include "engine/host_mirror.h"

#include <sched.h>
#include <sys/mman.h>

namespace vecgpu {

static constexpr uint64_t kSmallPage = 4096;
static constexpr uint64_t kHugePage = 2u << 20;

RecordArray::~RecordArray()
{
    if (data_)
        munmap(data_, mapped_);
}

uint64_t RecordArray::bytes(uint32_t records, uint32_t record_bytes)
{
    return (uint64_t(records) * record_bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
}

bool RecordArray::map(uint32_t records, uint32_t record_bytes)
{
    records_ = record_bytes ? records : 0;
    record_bytes_ = record_bytes;
    unit_ = record_bytes % 8 == 0 ? 8 : record_bytes % 4 == 0 ? 4 : 2;
    uint64_t size = bytes(records, record_bytes);
    if (size == 0)
        return true;
    /* Without MAP_NORESERVE: what the machine can never hold is refused here, not by a signal later. */
    void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    data_ = static_cast<uint8_t *>(memory);
    mapped_ = size;
    /* A walk reads at random: with small pages nearly every row misses the TLB too. A hint. */
    if (size >= 4 * kHugePage)
        madvise(memory, size, MADV_HUGEPAGE);
    return true;
}

void RecordArray::write_shared(uint32_t first, uint32_t count, const void *records)
{
    uint8_t *to = data_ + uint64_t(first) * record_bytes_;
    uint64_t bytes = uint64_t(count) * record_bytes_;
    if (unit_ == 8)
        store<uint64_t>(to, records, bytes);
    else if (unit_ == 4)
        store<uint32_t>(to, records, bytes);
    else
        store<uint16_t>(to, records, bytes);
}

MirrorState SharedState::read() const
{
    for (;;) {
        uint32_t before = sequence_.load(std::memory_order_acquire);
        uint32_t words[kWords];
        for (int i = 0; i < kWords; i++)
            words[i] = words_[i].load(std::memory_order_acquire);
        if (before % 2 == 0 && sequence_.load(std::memory_order_relaxed) == before) {
            MirrorState state;
            memcpy(&state, words, sizeof state);
            return state;
        }
        sched_yield(); /* the writer may have lost its CPU */
    }
}

void SharedState::write(const MirrorState &state)
{
    uint32_t words[kWords];
    memcpy(words, &state, sizeof state);
    uint32_t before = sequence_.load(std::memory_order_relaxed);
    sequence_.store(before + 1, std::memory_order_relaxed);
    for (int i = 0; i < kWords; i++)
        words_[i].store(words[i], std::memory_order_release);
    sequence_.store(before + 2, std::memory_order_release);
}

/* 0 for what an index without a graph does not have; m and cell_width may be anything there. */
static uint32_t record_bytes(const MirrorShape &shape, Region region)
{
    if (shape.kind == IndexKind::Flat && (region == Region::Links || region == Region::Upper))
        return 0;
    return region_shape(region, shape.storage, shape.dimensions, shape.m, shape.cell_width).record_bytes;
}

bool HostMirror::create(const MirrorShape &of)
{
    shape = of;
    return vectors.map(of.nodes, record_bytes(of, Region::Vectors)) &&
           slots.map(of.nodes, record_bytes(of, Region::Slots)) &&
           links.map(of.nodes, record_bytes(of, Region::Links)) && upper.map(of.upper, record_bytes(of, Region::Upper));
}

RecordArray *HostMirror::region(Region region)
{
    switch (region) {
    case Region::Vectors:
        return &vectors;
    case Region::Links:
        return &links;
    case Region::Slots:
        return &slots;
    case Region::Upper:
        return &upper;
    case Region::Twins:
        break;
    }
    return nullptr;
}

uint64_t HostMirror::bytes(const MirrorShape &shape)
{
    return RecordArray::bytes(shape.nodes, record_bytes(shape, Region::Vectors)) +
           RecordArray::bytes(shape.nodes, record_bytes(shape, Region::Slots)) +
           RecordArray::bytes(shape.nodes, record_bytes(shape, Region::Links)) +
           RecordArray::bytes(shape.upper, record_bytes(shape, Region::Upper));
}

} // namespace vecgpu
