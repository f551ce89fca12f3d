/*
 * large.cpp: few rows at the far ends of a mirror so large that bytes, floats and 16-byte pieces of its rows, and bytes of its links, need
 * more than 32 bits. The same rows close together (Index) say what the answers are. Only on request, and only on a device with the memory.
 */
#include "parity.h"

#include <algorithm>

namespace parity {

static constexpr uint32_t kLive = 1500, kDimensions = 1024;

/* Row i of the small index lies at slot place(i): in the same order, the first at 0, the last in the last slot. */
static uint32_t place(uint32_t i, uint32_t nodes)
{
    return static_cast<uint32_t>(uint64_t(nodes - 1) * i / (kLive - 1));
}

static void write(const Subject &subject, DeviceMirror *mirror, Region region, uint32_t first, uint32_t count,
                  const void *records)
{
    char error[kErrorBytes] = "";
    Status status = subject.api->mirror_write(subject.stream, mirror, region, first, count, records, error);
    CHECK(status == Status::Ok, "write: %d %s", int(status), error);
}

/* False: no room. */
static bool fill(const Subject &subject, const Index &index, uint32_t nodes, DeviceMirror **mirror)
{
    MirrorShape shape = shape_of(index);
    shape.nodes = nodes;
    char error[kErrorBytes] = "";
    Status status = subject.api->mirror_create(subject.device, &shape, mirror, error);
    if (status == Status::NoMemory)
        return false;
    CHECK(status == Status::Ok, "create: %d %s", int(status), error);
    constexpr uint32_t chunk = 1 << 20;
    const std::vector<SlotRecord> unused(chunk, SlotRecord{{0, 0, 1}, kRowUnused});
    for (uint32_t first = 0; first < nodes; first += chunk)
        write(subject, *mirror, Region::Slots, first, std::min(chunk, nodes - first), unused.data());
    const uint32_t row = index.record_bytes(Region::Vectors), cells = 2 * index.m;
    for (uint32_t i = 0; i < kLive; i++) {
        const uint32_t at = place(i, nodes);
        const SlotRecord slot = index.slot(i);
        write(subject, *mirror, Region::Slots, at, 1, &slot);
        write(subject, *mirror, Region::Vectors, at, 1, index.vectors.data() + size_t(i) * row);
        std::vector<uint32_t> links(cells);
        memcpy(links.data(), index.links.data() + size_t(i) * cells * 4, size_t(cells) * 4);
        for (uint32_t &link : links)
            if (link != kNone)
                link = place(link, nodes);
        write(subject, *mirror, Region::Links, at, 1, links.data());
    }
    std::vector<uint8_t> upper = index.upper_records;
    for (uint32_t i = 0; i < index.upper; i++) {
        UpperRecord record;
        uint8_t *at = upper.data() + size_t(i) * index.record_bytes(Region::Upper);
        memcpy(&record, at, sizeof record);
        record.slot = place(record.slot, nodes);
        memcpy(at, &record, sizeof record);
    }
    write(subject, *mirror, Region::Upper, 0, index.upper, upper.data());
    MirrorState state = state_of(index);
    state.nodes = nodes;
    if (state.entry_level == 0)
        state.entry_handle = place(state.entry_handle, nodes);
    status = subject.api->mirror_commit(subject.stream, *mirror, &state, error);
    CHECK(status == Status::Ok, "commit: %d %s", int(status), error);
    return true;
}

void test_far()
{
    const Subject &subject = all().back();
    Data rows = random_data(kLive, kDimensions, 3, 0), queries = random_data(70, kDimensions, 3, 1);
    for (Storage storage : {Storage::Int8, Storage::Float32}) {
        Options options;
        options.storage = storage;
        Index index = make_index(rows, options);
        Judge judge(index);
        const uint32_t nodes = 17000000; /* 17.4 G values: 2^32 pieces of 4 float32 and more */
        TEST(
            (std::to_string(nodes) + " rows of " + std::to_string(kDimensions) + ", " + storage_name(storage)).c_str());
        DeviceMirror *mirror = nullptr;
        if (!fill(subject, index, nodes, &mirror)) {
            test::note("left out: no room on the device");
            continue;
        }
        Filter every(nodes / 64 + 1, ~uint64_t(0)), some = random_filter(nodes, 0.5, 9), small_some(kLive / 64 + 1);
        for (uint32_t i = 0; i < kLive; i++)
            if (some[place(i, nodes) / 64] >> (place(i, nodes) % 64) & 1)
                small_some[i / 64] |= uint64_t(1) << (i % 64);
        struct Case {
            SearchForm form;
            uint32_t k;
            const Filter *filter, *same_filter; /* of the large mirror, of the small index */
        };
        const Case cases[] = {
            {SearchForm::Exact, 10, nullptr, nullptr},         {SearchForm::Exact, 1400, nullptr, nullptr},
            {SearchForm::Exact, kLive + 10, nullptr, nullptr}, {SearchForm::Exact, 10, &some, &small_some},
            {SearchForm::Graph, 10, nullptr, nullptr},         {SearchForm::Graph, 10, &every, nullptr}};
        for (const Case &c : cases) {
            for (uint32_t batch : {1u, 3u, 70u}) {
                std::vector<Hit> hits(size_t(batch) * c.k);
                std::vector<uint32_t> counts(batch);
                std::vector<BatchQuery> list(batch);
                for (uint32_t q = 0; q < batch; q++)
                    list[q] = {queries.at(q), hits.data() + size_t(q) * c.k, &counts[q]};
                BatchParams params = {c.form, c.k, 64, kDimensions, c.filter ? c.filter->data() : nullptr};
                char error[kErrorBytes] = "";
                Status status = subject.api->search(subject.stream, mirror, &params, list.data(), batch, nullptr,
                                                    nullptr, nullptr, error);
                CHECK(status == Status::Ok, "search: %d %s", int(status), error);
                double recall = 0;
                for (uint32_t q = 0; q < batch && status == Status::Ok; q++) {
                    Hits back(list[q].hits, list[q].hits + std::min(counts[q], c.k));
                    bool known = true;
                    for (Hit &hit : back) {
                        const uint32_t i =
                            static_cast<uint32_t>((uint64_t(hit.slot) * (kLive - 1) + nodes - 2) / (nodes - 1));
                        known = known && i < kLive && place(i, nodes) == hit.slot;
                        hit.slot = std::min(i, kLive - 1);
                    }
                    CHECK(known, "a slot that was never written, query %u", q);
                    Search asked = {c.form, c.k, 64, c.same_filter};
                    Truth truth = judge.truth(queries.at(q));
                    if (c.form == SearchForm::Exact)
                        judge.check_exact("large", index, asked, truth, back);
                    else
                        judge.check_sound("large", index, asked, truth, back);
                    recall += judge.recall(index, asked, truth, back) / batch;
                }
                CHECK(recall >= 0.95, "recall %.4f of %u queries", recall, batch);
            }
        }
        subject.api->mirror_drop(mirror);
    }
}

} // namespace parity
