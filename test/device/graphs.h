/*
 * graphs.h: data sets, and indexes over them as the records that pages hold.
 */
#pragma once

#include "page/layout.h"

#include <memory>
#include <vector>

namespace parity {

using namespace vecgpu;

/* n vectors of float32. */
struct Data {
    uint32_t n = 0, dimensions = 0;
    std::vector<float> floats;

    const float *at(uint32_t i) const { return floats.data() + size_t(i) * dimensions; }
    float *at(uint32_t i) { return floats.data() + size_t(i) * dimensions; }
};

/* Around 20 centres that `seed` chooses; `part` chooses the vectors: rows and queries are two parts. */
Data random_data(uint32_t n, uint32_t dimensions, uint64_t seed, uint64_t part);

/* The sample in a folder, see its README. n = 0 if it is not there. */
Data read_sample(const char *folder, const char *file);

/* Records of all regions, and the numbers that go with them. */
struct Index {
    IndexKind kind;
    Metric metric;
    Storage storage;
    uint8_t width;
    uint32_t dimensions, m;
    uint32_t nodes, upper;
    uint32_t entry_handle;
    int32_t entry_level;
    float max_norm;
    std::vector<uint8_t> vectors, links, slots, upper_records;

    uint32_t record_bytes(Region region) const
    {
        return region_shape(region, storage, dimensions, m, width).record_bytes;
    }
    SlotRecord slot(uint32_t i) const;
    void set_meta(uint32_t slot, uint16_t meta);
    /* What a device may return. */
    bool returnable(uint32_t slot, const std::vector<uint64_t> *filter) const;
};

struct Options {
    Metric metric = Metric::L2;
    Storage storage = Storage::Float32;
    uint32_t m = 8;
    uint32_t ef_construction = 40;
    uint8_t width = 4;
    bool flat = false; /* no graph */
    const std::vector<uint8_t> *twins =
        nullptr; /* nodes with 1 have kRowHasTwins and a twin's number in the last cell */
};

struct Found {
    uint32_t slot;
    float key;

    bool operator==(const Found &) const = default;
};

/* A graph that can grow. */
class Grower {
public:
    Grower(const Data &rows, const Options &options);
    ~Grower();

    /* The index of the first n rows; n never shrinks. */
    Index grow(uint32_t n);

    /* What the scan over the pages finds (am/scan.cpp): the first k of the stream, then in order. Without twins. */
    std::vector<Found> walk(const float *query, uint32_t k, uint32_t ef) const;

private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

Index make_index(const Data &rows, const Options &options);

} // namespace parity
