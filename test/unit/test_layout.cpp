/*
 * test_layout.cpp: addresses and cells on pages: no two records share a byte, none lies outside of its pages, and what is
 * stored comes back.
 */
#include "page/layout.h"
#include "test.h"

#include <vector>

using namespace test;
using namespace vecgpu;

/* Every record of a region lies inside of the payloads, and records tile them without overlap. */
static void check_region(Region region, Storage storage, uint32_t dimensions, uint32_t m, uint32_t width)
{
    RegionShape shape = region_shape(region, storage, dimensions, m, width);
    CHECK(shape.record_bytes > 0, "region %d has empty records", int(region));
    uint64_t end = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        RecordAddress at = record_address(shape, i);
        uint64_t start = uint64_t(at.page) * kPayloadBytes + at.offset;
        CHECK(at.offset < kPayloadBytes, "record %u starts outside of its page", i);
        CHECK(start >= end, "record %u of region %d overlaps the one before", i, int(region));
        if (shape.per_page != 0)
            CHECK(at.offset + shape.record_bytes <= kPayloadBytes, "record %u of region %d spans pages", i, int(region));
        else
            CHECK(start == end, "a packed region has a hole before record %u", i);
        end = start + shape.record_bytes;
        CHECK(region_pages(shape, i + 1) * kPayloadBytes >= end, "%u records do not fit on their pages", i + 1);
        CHECK((region_pages(shape, i + 1) - 1) * kPayloadBytes < end, "%u records have a page too many", i + 1);
    }
}

static void regions()
{
    TEST("records of every region tile their pages");
    for (uint32_t m : {2u, 16u, 99u, 100u})
        for (uint32_t width : {2u, 3u, 4u})
            for (Region region : {Region::Links, Region::Slots, Region::Twins, Region::Upper})
                check_region(region, Storage::Float32, 3, m, width);
    for (Storage storage : {Storage::Float32, Storage::Float16, Storage::BFloat16, Storage::Int8})
        for (uint32_t dimensions : {1u, 2u, 3u, 128u, 2037u, 2038u, 2039u, 16000u})
            check_region(Region::Vectors, storage, dimensions, 16, 3);

    TEST("addresses beyond 4 GB are exact");
    RegionShape shape = region_shape(Region::Vectors, Storage::Float32, 16000, 16, 4);
    RecordAddress at = record_address(shape, 100000000);
    CHECK(uint64_t(at.page) * kPayloadBytes + at.offset == 100000000ull * 64000, "page %u offset %u", at.page, at.offset);
}

static void cells()
{
    TEST("cells keep their numbers and do not touch their neighbours");
    for (uint32_t width : {2u, 3u, 4u}) {
        uint32_t last = max_nodes(width) - 1;
        for (uint32_t value : {0u, 1u, 255u, 256u, 65534u, last, kNone}) {
            uint8_t bytes[16];
            memset(bytes, 0xa5, sizeof(bytes));
            store_cell(bytes, 1, width, value);
            CHECK(load_cell(bytes, 1, width) == value, "width %u: stored %u, read %u", width, value,
                  load_cell(bytes, 1, width));
            for (uint32_t i = 0; i < sizeof(bytes); i++)
                CHECK((i >= width && i < 2 * width) || bytes[i] == 0xa5, "width %u: byte %u changed", width, i);
        }
    }
}

static void extents()
{
    TEST("pages are found in their extents");
    RegionDirectory directory = {};
    directory.extents = 3;
    directory.extent[0] = {10, 5};
    directory.extent[1] = {100, 1};
    directory.extent[2] = {50, 4};
    directory.pages = 10;
    const uint32_t blocks[] = {10, 11, 12, 13, 14, 100, 50, 51, 52, 53, kNoBlock, kNoBlock};
    for (uint32_t page = 0; page < 12; page++)
        CHECK(region_block(directory, page) == blocks[page], "page %u is block %u", page, region_block(directory, page));
    directory.extents = kMaxExtents + 7; /* damaged: must not read past the array */
    for (uint32_t i = 0; i < kMaxExtents; i++)
        directory.extent[i] = {1 + i, 1};
    CHECK(region_block(directory, kMaxExtents) == kNoBlock, "an extent beyond the directory was used");
}

static void delta()
{
    TEST("a delta page holds at least one row of any size");
    for (Storage storage : {Storage::Float32, Storage::Float16, Storage::Int8})
        for (uint32_t dimensions = 1; dimensions <= kMaxDimensions; dimensions++) {
            uint32_t size = uint32_t(row_bytes(storage, dimensions));
            uint32_t rows = delta_capacity(size);
            uint64_t used = sizeof(DeltaHeader) + uint64_t(rows) * delta_stride(size);
            CHECK(rows >= 1, "no row of %u dimensions fits", dimensions);
            CHECK(used <= kPayloadBytes, "%u dimensions: %u rows do not fit", dimensions, rows);
            CHECK(used + delta_stride(size) > kPayloadBytes, "%u dimensions: one more row fits", dimensions);
        }
}

int main()
{
    regions();
    cells();
    extents();
    delta();
    return finish();
}
