/*
 * graphs.cpp: see graphs.h.
 */
#include "graphs.h"

#include "graph_source.h"

namespace parity {

Data random_data(uint32_t n, uint32_t dimensions, uint64_t seed, uint64_t part)
{
    Data data;
    data.n = n;
    data.dimensions = dimensions;
    data.floats.resize(size_t(n) * dimensions);
    test::Random centre_random(seed), random(seed * 1000003 + part + 1);
    std::vector<float> centres(20 * size_t(dimensions));
    for (float &x : centres)
        x = centre_random.symmetric() * 2;
    for (uint32_t i = 0; i < n; i++) {
        const float *centre = centres.data() + size_t(random.below(20)) * dimensions;
        for (uint32_t j = 0; j < dimensions; j++)
            data.at(i)[j] = centre[j] + random.normal();
    }
    return data;
}

Data read_sample(const char *folder, const char *file)
{
    test::Rows rows = test::read_u8bin(std::string(folder) + "/" + file);
    Data data;
    data.n = rows.n;
    data.dimensions = rows.dimensions;
    data.floats = std::move(rows.floats);
    return data;
}

SlotRecord Index::slot(uint32_t i) const
{
    SlotRecord record;
    memcpy(&record, slots.data() + size_t(i) * sizeof record, sizeof record);
    return record;
}

void Index::set_meta(uint32_t i, uint16_t meta)
{
    SlotRecord record = slot(i);
    record.meta = meta;
    memcpy(slots.data() + size_t(i) * sizeof record, &record, sizeof record);
}

bool Index::returnable(uint32_t i, const std::vector<uint64_t> *filter) const
{
    if (filter && !((*filter)[i / 64] >> (i % 64) & 1))
        return false;
    uint16_t meta = slot(i).meta;
    return (meta & kRowStateMask) == kRowLive || (meta & kRowHasTwins);
}

struct Grower::Parts {
    Options options;
    test::Rows rows;
    test::OwnedGraph owned;
    std::vector<uint8_t> reserved;
    BuildParams params;
    uint32_t built = 0;

    Parts(const Data &data, const Options &o) : options(o), owned(o.flat ? 0 : data.n, o.m)
    {
        rows.n = data.n;
        rows.dimensions = data.dimensions;
        rows.floats = data.floats;
        rows.encode(o.storage);
        params = {o.metric, o.storage, data.dimensions, o.ef_construction, 0, 0, true, false};
        if (o.metric == Metric::InnerProduct) {
            std::vector<float> scratch(data.dimensions);
            params.max_norm = largest_norm(o.storage, rows.data(), rows.n, rows.dimensions, scratch.data());
        }
        if (o.twins)
            reserved = *o.twins;
        else
            reserved.assign(data.n, 0);
        owned.graph.reserved = reserved.data();
    }
};

Grower::Grower(const Data &rows, const Options &options) : parts_(std::make_unique<Parts>(rows, options)) {}

Grower::~Grower() = default;

static void must(bool good, const char *what)
{
    if (good)
        return;
    fprintf(stderr, "test data: %s\n", what);
    abort();
}

Index Grower::grow(uint32_t n)
{
    Parts &p = *parts_;
    const Graph &graph = p.owned.graph;
    if (!p.options.flat && n > p.built) {
        p.owned.add(n);
        BuildControl control;
        /* More threads give another graph each time. The large set is for figures only. */
        p.params.threads = n - p.built >= 10000 ? 2 : 0;
        must(build_graph(&p.owned.graph, p.rows.data(), p.built, n, p.params, &control) == BuildStatus::Ok, "build");
        p.built = n;
    }
    Index index = {};
    index.kind = p.options.flat ? IndexKind::Flat : IndexKind::Hnsw;
    index.metric = p.options.metric;
    index.storage = p.options.storage;
    index.width = p.options.width;
    index.dimensions = p.rows.dimensions;
    index.m = p.options.m;
    index.nodes = n;
    index.max_norm = p.params.max_norm;
    index.entry_handle = kNone;
    const uint8_t *rows = static_cast<const uint8_t *>(p.rows.data());
    index.vectors.assign(rows, rows + n * p.rows.bytes());
    for (uint32_t i = 0; i < n; i++) {
        SlotRecord record = {{0, uint16_t(i / 100), uint16_t(i % 100 + 1)}, kRowLive};
        if (p.reserved[i])
            record.meta |= kRowHasTwins;
        const uint8_t *bytes = reinterpret_cast<const uint8_t *>(&record);
        index.slots.insert(index.slots.end(), bytes, bytes + sizeof record);
    }
    if (p.options.flat || n == 0)
        return index;
    uint32_t width = p.options.width, m = p.options.m;
    must(n <= max_nodes(width), "cell width");
    index.links.assign(size_t(n) * index.record_bytes(Region::Links), 0xff);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *cells = index.links.data() + size_t(i) * index.record_bytes(Region::Links);
        const uint32_t *list = graph.links0 + size_t(i) * 2 * m;
        for (uint32_t j = 0; j < 2 * m && list[j] != kNone; j++)
            store_cell(cells, j, width, list[j]);
        if (p.reserved[i])
            store_cell(cells, 2 * m - 1, width, i * 7u % max_nodes(width)); /* a number of another region */
    }
    index.upper = uint32_t(graph.records);
    index.upper_records.assign(size_t(index.upper) * index.record_bytes(Region::Upper), 0xff);
    for (uint32_t handle = 0; handle < index.upper; handle++) {
        uint32_t slot = p.owned.owner[handle];
        uint32_t level = handle - graph.upper_offset[slot]; /* above 1 */
        uint8_t *bytes = index.upper_records.data() + size_t(handle) * index.record_bytes(Region::Upper);
        UpperRecord record = {slot, uint8_t(level + 1), {}};
        memcpy(bytes, &record, sizeof record);
        const uint32_t *list = graph.upper + size_t(handle) * m;
        for (uint32_t j = 0; j < m && list[j] != kNone; j++)
            store_cell(bytes + sizeof record, j, width, graph.upper_offset[list[j]] + level);
    }
    index.entry_level = graph.entry_level;
    index.entry_handle =
        graph.entry_level > 0 ? graph.upper_offset[graph.entry] + uint32_t(graph.entry_level) - 1 : graph.entry;
    return index;
}

std::vector<Found> Grower::walk(const float *query, uint32_t k, uint32_t ef) const
{
    const Parts &p = *parts_;
    Query made = make_query(query, p.rows.dimensions, p.options.metric, p.options.storage);
    test::GraphSource source(p.owned, p.rows.data(), made);
    test::Arena arena;
    Stream<test::GraphSource> stream;
    uint64_t nodes = p.owned.graph.count, sweep_after = nodes / 4;
    if (nodes / 32 <= ef) {
        sweep_after = 0;
        ef = 1;
    }
    stream.init(&source, arena.allocator(), ef, sweep_after);
    std::vector<Found> found;
    Found one;
    while (found.size() < k && stream.next(&one.slot, &one.key))
        found.push_back(one);
    std::sort(found.begin(), found.end(),
              [](const Found &a, const Found &b) { return pack(a.key, a.slot) < pack(b.key, b.slot); });
    return found;
}

Index make_index(const Data &rows, const Options &options)
{
    return Grower(rows, options).grow(rows.n);
}

} // namespace parity
