/*
 * types.h: the words that every room shares: metric, row storage, node ids.
 *
 * PostgreSQL-free. The enum values are on disk (metapage): never renumber them.
 */
#pragma once

#include <cstddef>
#include <cstdint>

namespace vecgpu {

enum class Metric : uint8_t {
    L2 = 1,           /* key: squared Euclidean distance */
    InnerProduct = 2, /* key: negative inner product */
    Cosine = 3,       /* key: 1 - cosine similarity */
};

enum class Storage : uint8_t {
    Float32 = 1,
    Float16 = 2,  /* IEEE binary16 */
    BFloat16 = 3, /* upper half of binary32, rounded to nearest even */
    Int8 = 4,     /* per-row float32 scale, then one signed byte a dimension */
};

/* "no node": ends link lists and marks empty cells. Node ids are below it. */
constexpr uint32_t kNone = UINT32_MAX;

constexpr uint32_t kMaxDimensions = 16000;
constexpr int kMaxLevel = 31; /* top layer of an HNSW graph, inclusive */

/* Bytes of one stored row, a multiple of 4. */
constexpr size_t row_bytes(Storage storage, uint32_t dimensions)
{
    size_t d = dimensions;
    switch (storage) {
        case Storage::Float32:
            return 4 * d;
        case Storage::Float16:
        case Storage::BFloat16:
            return (2 * d + 3) / 4 * 4;
        case Storage::Int8:
            return 4 + (d + 3) / 4 * 4;
    }
    return 0;
}

} // namespace vecgpu
