/*
 * layout.h: the bytes on disk. PostgreSQL-free: the engine, the device code and the tests read pages with it too.
 *
 * A relation is: block 0, the metapage; region pages (arrays of fixed-size records, see Region); delta pages
 * (rows that wait for a flush) with overflow pages for vectors that are larger than a page; journal pages.
 * Every page ends in a PageTrailer (PostgreSQL's special area).
 *
 * All integers are in the byte order of the machine, as in every PostgreSQL relation. Sizes and offsets are pinned by the
 * static_asserts at the end: to change one is to change kFormatVersion.
 */
#pragma once

#include "core/types.h"

namespace vecgpu {

constexpr uint32_t kPageBytes = 8192;
constexpr uint32_t kPageHeaderBytes = 24; /* PageHeaderData without line pointers */
constexpr uint32_t kNoBlock = UINT32_MAX;
constexpr uint32_t kMagic = 0x55504756; /* "VGPU" */
constexpr uint32_t kFormatVersion = 1;

enum class PageKind : uint16_t {
    Meta = 0x5601,
    Region = 0x5602,
    Delta = 0x5603,
    Overflow = 0x5604, /* a part of a delta vector that does not fit on a page */
    Journal = 0x5605,
    Parked = 0x5606, /* list of extents that wait for the horizon */
    Free = 0x5607,
};

struct PageTrailer {
    uint64_t epoch;    /* of the last change */
    PageKind kind;
    uint16_t region;   /* Region pages: which */
    uint32_t sequence; /* Region: generation of the index; Delta and Overflow: never the same for two uses of a block */
};

constexpr uint32_t kPayloadBytes = kPageBytes - kPageHeaderBytes - sizeof(PageTrailer);

enum class IndexKind : uint8_t {
    Hnsw = 1,
    Flat = 2, /* no graph: every scan is exact */
};

/* ---- regions ---- */

enum class Region : uint16_t {
    Vectors = 0, /* row_bytes() a slot, packed: a record may span pages */
    Links = 1,   /* layer 0: 2m cells a slot */
    Slots = 2,   /* SlotRecord a slot */
    Twins = 3,   /* TwinRecord: further rows with the vector of a slot */
    Upper = 4,   /* UpperRecord + m cells: one a node and level >= 1 */
};
constexpr int kRegions = 5;

struct Extent {
    uint32_t first_block;
    uint32_t pages;
};
constexpr uint32_t kMaxExtents = 40;

struct RegionDirectory {
    uint32_t pages; /* of all extents */
    uint32_t extents;
    Extent extent[kMaxExtents];
};

/* A heap row: block (high half first, like ItemPointerData) and line pointer. */
struct RowId {
    uint16_t block_high;
    uint16_t block_low;
    uint16_t offset;
};

/* SlotRecord.meta, TwinRecord.meta, DeltaRow.meta */
enum RowState : uint16_t {
    kRowUnused = 0,
    kRowLive = 1,
    kRowDead = 2, /* VACUUM removed the heap row; the id must not be used */
    kRowStateMask = 3,
    kRowHasTwins = 1 << 2,  /* the last cell of the slot's links is the number of its first twin */
    kRowKilled = 1 << 3,    /* hint: the heap row is dead to every transaction of the primary */
    kRowOverflow = 1 << 4,  /* delta: the vector lies on overflow pages */
    kRowStampShift = 8,     /* upper byte: low byte of the generation that wrote the record */
};

struct SlotRecord {
    RowId row;
    uint16_t meta;
};

/*
 * A chain of twins grows at its end. It ends at kNone, at a number that the metapage does not cover, or at a record of another
 * slot: the last two are what a flush that never got to its publish may leave behind.
 */
struct TwinRecord {
    RowId row;
    uint16_t meta;
    uint32_t next; /* next twin of the same slot, or kNone */
    uint32_t slot; /* whose vector this row has */
    uint32_t last; /* first twin of a slot: number of the last one, a hint for appending */
};

struct UpperRecord {
    uint32_t slot;
    uint8_t level;
    uint8_t unused[3];
    /* m cells: numbers of upper records on the same level. Level l of a node is record l - 1 after its level 1. */
};

/* ---- cells: node ids of 2, 3 or 4 bytes, all ones means none ---- */

constexpr uint32_t max_nodes(uint32_t width)
{
    return width >= 4 ? UINT32_MAX - 1 : (1u << (8 * width)) - 1;
}

inline uint32_t load_cell(const uint8_t *cells, uint32_t i, uint32_t width)
{
    const uint8_t *p = cells + static_cast<size_t>(i) * width;
    switch (width) {
        case 2: {
            uint32_t v = p[0] | p[1] << 8;
            return v == 0xffff ? kNone : v;
        }
        case 3: {
            uint32_t v = p[0] | p[1] << 8 | p[2] << 16;
            return v == 0xffffff ? kNone : v;
        }
        default:
            return static_cast<uint32_t>(p[0]) | static_cast<uint32_t>(p[1]) << 8 | static_cast<uint32_t>(p[2]) << 16 |
                   static_cast<uint32_t>(p[3]) << 24;
    }
}

inline void store_cell(uint8_t *cells, uint32_t i, uint32_t width, uint32_t value)
{
    uint8_t *p = cells + static_cast<size_t>(i) * width;
    for (uint32_t b = 0; b < width; b++)
        p[b] = static_cast<uint8_t>(value >> (8 * b));
}

/* ---- delta ---- */

constexpr uint32_t kDeltaChains = 16; /* writers spread over them */

struct DeltaHeader { /* at the start of the payload */
    uint32_t next_block;
    uint32_t next_sequence;
    uint16_t rows;
    uint16_t chain;
    uint32_t unused;
};

struct DeltaRow { /* followed by the vector, or by OverflowPointer when kRowOverflow is set */
    RowId row;
    uint16_t meta;
};

struct OverflowPointer {
    uint32_t block;
    uint32_t sequence;
};

struct OverflowHeader { /* followed by bytes of the vector up to the end of the payload */
    uint32_t next_block;
    uint32_t next_sequence;
};

struct DeltaChain {
    uint32_t head_block; /* first page with rows that are not flushed, or kNoBlock */
    uint32_t head_sequence;
    uint32_t head_row; /* rows of the head page below it are flushed */
    uint32_t tail_block;
    uint32_t tail_sequence;
    uint32_t pages;
};

/* ---- journal: a ring of (epoch, block), written by every change that a mirror must learn of ---- */

struct JournalEntry {
    uint32_t epoch_low; /* low half of the epoch */
    uint32_t block;
};
constexpr uint32_t kJournalPages = 4;
constexpr uint32_t kJournalPerPage = kPayloadBytes / sizeof(JournalEntry);
constexpr uint32_t kJournalEntries = kJournalPages * kJournalPerPage;

/* ---- parked extents ---- */

struct ParkedExtent {
    uint64_t xid; /* full transaction id: free once every snapshot is younger */
    uint32_t first_block;
    uint32_t pages;
};
constexpr uint32_t kMaxParked = kPayloadBytes / sizeof(ParkedExtent);

/* ---- metapage, at the start of the payload of block 0 ---- */

struct Meta {
    uint32_t magic;
    uint32_t version;
    IndexKind kind;
    Metric metric;
    Storage storage;
    uint8_t cell_width; /* bytes of a link cell: 2, 3 or 4 */
    uint32_t dimensions; /* 0: not known yet */
    uint16_t m;
    uint16_t ef_construction;
    uint32_t generation; /* raised when all regions are written anew */
    uint64_t incarnation; /* random, drawn at build */
    uint64_t epoch;
    uint32_t nodes; /* slots 0 .. nodes-1 are in use */
    uint32_t twins;
    uint32_t upper; /* upper records */
    uint32_t dead_nodes; /* slots whose row and twins are all dead */
    uint32_t dead_twins;
    uint32_t entry_handle; /* upper record, or slot if entry_level is 0; kNone: no nodes */
    int32_t entry_level;
    float max_norm; /* inner product: the norm M of the reduction to L2 */
    float max_error; /* narrow storage: the largest |x - stored x| of any row; cosine: relative to |x| */
    uint32_t delta_sequence; /* of the last delta or overflow page handed out */
    uint32_t journal_block; /* first of kJournalPages */
    uint32_t unused;
    uint64_t journal_count; /* entries ever written */
    uint64_t journal_floor; /* changes up to this epoch are not in the journal */
    uint32_t parked_block;
    uint32_t parked; /* entries on it */
    RegionDirectory regions[kRegions];
    DeltaChain chains[kDeltaChains];
};

/* Why the numbers of a metapage cannot be right, or null. Whoever reads one does arithmetic with them. */
inline const char *meta_fault(const Meta &meta)
{
    if (meta.magic != kMagic)
        return "not a vecgpu index";
    if (meta.version != kFormatVersion)
        return "unknown format version";
    if (meta.kind != IndexKind::Hnsw && meta.kind != IndexKind::Flat)
        return "unknown kind";
    if (meta.metric < Metric::L2 || meta.metric > Metric::Cosine)
        return "unknown metric";
    if (meta.storage < Storage::Float32 || meta.storage > Storage::Int8)
        return "unknown storage";
    if (meta.cell_width < 2 || meta.cell_width > 4)
        return "cell width out of range";
    if (meta.dimensions > kMaxDimensions)
        return "too many dimensions";
    if (meta.m < 2 || meta.m > 100)
        return "m out of range";
    if (meta.nodes > max_nodes(meta.cell_width) || (meta.nodes > 0 && meta.dimensions == 0))
        return "node count out of range";
    if (meta.dead_nodes > meta.nodes || meta.dead_twins > meta.twins || meta.parked > kMaxParked)
        return "counters out of range";
    if (meta.entry_handle != kNone) {
        if (meta.entry_level < 0 || meta.entry_level > kMaxLevel)
            return "entry level out of range";
        if (meta.entry_handle >= (meta.entry_level == 0 ? meta.nodes : meta.upper))
            return "entry point out of range";
    }
    return nullptr;
}

/* ---- addresses ---- */

struct RegionShape {
    uint32_t record_bytes;
    uint32_t per_page; /* 0: packed */
};

constexpr RegionShape region_shape(Region region, Storage storage, uint32_t dimensions, uint32_t m, uint32_t width)
{
    uint32_t bytes = 0;
    switch (region) {
        case Region::Vectors:
            return {static_cast<uint32_t>(row_bytes(storage, dimensions)), 0};
        case Region::Links:
            bytes = 2 * m * width;
            break;
        case Region::Slots:
            bytes = sizeof(SlotRecord);
            break;
        case Region::Twins:
            bytes = sizeof(TwinRecord);
            break;
        case Region::Upper:
            bytes = (static_cast<uint32_t>(sizeof(UpperRecord)) + m * width + 3) / 4 * 4;
            break;
    }
    return {bytes, kPayloadBytes / bytes};
}

inline RegionShape region_shape(const Meta &meta, Region region)
{
    return region_shape(region, meta.storage, meta.dimensions, meta.m, meta.cell_width);
}

struct RecordAddress {
    uint32_t page;   /* within the region */
    uint32_t offset; /* within the payload */
};

inline RecordAddress record_address(const RegionShape &shape, uint32_t record)
{
    if (shape.per_page != 0)
        return {record / shape.per_page, record % shape.per_page * shape.record_bytes};
    uint64_t at = static_cast<uint64_t>(record) * shape.record_bytes;
    return {static_cast<uint32_t>(at / kPayloadBytes), static_cast<uint32_t>(at % kPayloadBytes)};
}

/* Pages that `records` records need. */
inline uint64_t region_pages(const RegionShape &shape, uint64_t records)
{
    if (shape.per_page != 0)
        return (records + shape.per_page - 1) / shape.per_page;
    return (records * shape.record_bytes + kPayloadBytes - 1) / kPayloadBytes;
}

/* Block of a page of a region, or kNoBlock beyond its end. */
inline uint32_t region_block(const RegionDirectory &directory, uint32_t page)
{
    for (uint32_t i = 0; i < directory.extents && i < kMaxExtents; i++) {
        if (page < directory.extent[i].pages)
            return directory.extent[i].first_block + page;
        page -= directory.extent[i].pages;
    }
    return kNoBlock;
}

/* Rows that fit on a delta page; 0 never happens: a vector that is too large lies on overflow pages. */
constexpr bool delta_overflows(uint32_t row_size)
{
    return sizeof(DeltaRow) + row_size > kPayloadBytes - sizeof(DeltaHeader);
}
constexpr uint32_t delta_stride(uint32_t row_size)
{
    return sizeof(DeltaRow) + (delta_overflows(row_size) ? sizeof(OverflowPointer) : row_size);
}
constexpr uint32_t delta_capacity(uint32_t row_size)
{
    return (kPayloadBytes - sizeof(DeltaHeader)) / delta_stride(row_size);
}

/* ---- pins ---- */
static_assert(sizeof(PageTrailer) == 16 && offsetof(PageTrailer, sequence) == 12);
static_assert(kPayloadBytes == 8152 && kPayloadBytes % sizeof(SlotRecord) == 0);
static_assert(sizeof(Extent) == 8 && sizeof(RegionDirectory) == 328);
static_assert(sizeof(RowId) == 6 && sizeof(SlotRecord) == 8 && sizeof(TwinRecord) == 20 && sizeof(UpperRecord) == 8);
static_assert(sizeof(DeltaHeader) == 16 && sizeof(DeltaRow) == 8 && sizeof(DeltaChain) == 24);
static_assert(sizeof(JournalEntry) == 8 && kJournalPerPage == 1019);
static_assert(sizeof(ParkedExtent) == 16 && kMaxParked == 509);
static_assert(offsetof(Meta, dimensions) == 12 && offsetof(Meta, incarnation) == 24 && offsetof(Meta, nodes) == 40);
static_assert(offsetof(Meta, journal_count) == 88 && offsetof(Meta, regions) == 112);
static_assert(sizeof(Meta) == 112 + kRegions * 328 + kDeltaChains * 24 && sizeof(Meta) <= kPayloadBytes);

} // namespace vecgpu
