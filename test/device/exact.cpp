/*
 * exact.cpp: the exact form, which the graph form must be as good as on small sets: metrics, storages, dimensions, sizes at
 * block edges, filters, dead rows, equal rows, scaled rows.
 */
#include "parity.h"

#include <algorithm>
#include <cmath>

namespace parity {

static constexpr Metric kMetrics[] = {Metric::L2, Metric::InnerProduct, Metric::Cosine};
static constexpr Storage kStorages[] = {Storage::Float32, Storage::Float16, Storage::BFloat16, Storage::Int8};

static Options flat(Metric metric, Storage storage)
{
    Options options;
    options.metric = metric;
    options.storage = storage;
    options.flat = true;
    return options;
}

static void test_kinds()
{
    for (uint32_t dimensions : {1, 3, 7, 127, 128, 129, 768, 1000, 2000}) {
        TEST(("exact, " + std::to_string(dimensions) + " dimensions").c_str());
        uint32_t n = (dimensions < 500 ? 1500 : 500) / (kSlow ? 5 : 1);
        Data rows = random_data(n, dimensions, dimensions, 0), queries = random_data(6, dimensions, dimensions, 1);
        for (Metric metric : kMetrics) {
            for (Storage storage : kStorages) {
                Search search;
                std::string what = std::string(metric_name(metric)) + " " + storage_name(storage);
                check_index(what.c_str(), make_index(rows, flat(metric, storage)), queries, search, 1);
            }
        }
    }

    TEST("exact, 16000 dimensions");
    Data rows = random_data(70, 16000, 5, 0), queries = random_data(2, 16000, 5, 1);
    for (Storage storage : kStorages)
        check_index(storage_name(storage), make_index(rows, flat(Metric::L2, storage)), queries, Search(), 1);
}

static void test_sizes()
{
    TEST("sizes at block edges, k up to more than there is");
    Data rows = random_data(4097, 16, 1, 0), queries = random_data(3, 16, 1, 1);
    for (uint32_t edge : {0, 2, 32, 64, 128, 256, 512, 1024, 2048, 4096}) {
        for (int off : {-1, 0, 1}) {
            if (int(edge) + off < 0 || (kSlow && edge > 512))
                continue;
            Data some = rows;
            some.n = edge + off;
            Index index = make_index(some, flat(Metric::L2, edge % 3 ? Storage::Float32 : Storage::Float16));
            for (uint32_t k : {1u, 10u, some.n - 1, some.n, some.n + 7}) {
                if (k == 0 || k == UINT32_MAX)
                    continue;
                Search search;
                search.k = k;
                std::string what = std::to_string(some.n) + " rows, k " + std::to_string(k);
                check_index(what.c_str(), index, queries, search, 1);
            }
        }
    }

    TEST("k at edges, up to what a request may ask for");
    Data many = random_data(kSlow ? 2000 : 9000, 4, 2, 0), few = random_data(2, 4, 2, 1);
    Index index = make_index(many, flat(Metric::L2, Storage::Float32));
    for (uint32_t k : {31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 8191, 8192}) {
        Search search;
        search.k = k;
        check_index(std::to_string(k).c_str(), index, few, search, 1);
    }
}

static void test_states()
{
    Data rows = random_data(700, 12, 3, 0), queries = random_data(5, 12, 3, 1);
    TEST("states of rows: dead, unused, killed, with twins");
    Index index = make_index(rows, flat(Metric::L2, Storage::Float32));
    const uint16_t states[] = {kRowLive,
                               kRowDead,
                               kRowUnused,
                               kRowLive | kRowKilled,
                               kRowDead | kRowHasTwins,
                               kRowLive | kRowHasTwins | 77 << kRowStampShift,
                               kRowDead | kRowKilled | 255 << kRowStampShift};
    for (uint32_t i = 0; i < index.nodes; i++)
        index.set_meta(i, states[i % 7]);
    for (uint32_t k : {1, 10, 700}) {
        Search search;
        search.k = k;
        check_index("mixed", index, queries, search, 1);
        Filter filter = random_filter(index.nodes, 0.3, 4);
        search.filter = &filter;
        check_index("mixed and filtered", index, queries, search, 1);
    }

    TEST("all rows dead");
    for (uint32_t i = 0; i < index.nodes; i++)
        index.set_meta(i, kRowDead);
    check_index("all dead", index, queries, Search(), 1);

    TEST("all rows dead but one");
    for (uint32_t live : {0u, 1u, 63u, 64u, 511u, index.nodes - 1}) {
        index.set_meta(live, kRowLive);
        check_index("one live", index, queries, Search(), 1);
        index.set_meta(live, kRowDead);
    }
}

static void test_filters()
{
    uint32_t n = kSlow ? 1000 : 3000;
    Data rows = random_data(n, 24, 6, 0), queries = random_data(5, 24, 6, 1);
    Index index = make_index(rows, flat(Metric::Cosine, Storage::Float32));
    Judge judge(index);
    TEST("random filters");
    for (double share : {1.0, 0.9, 0.5, 0.1, 0.01, 0.001}) {
        Filter filter = random_filter(n, share, 7);
        Search search;
        search.filter = &filter;
        check_index(std::to_string(share).c_str(), index, queries, search, 1);
    }

    TEST("filters that go with the query, or against it");
    for (uint32_t q = 0; q < queries.n; q++) {
        Truth truth = judge.truth(queries.at(q));
        std::vector<uint32_t> order(n);
        for (uint32_t i = 0; i < n; i++)
            order[i] = i;
        std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return truth.keys[a] < truth.keys[b]; });
        Data one = {1, queries.dimensions, {queries.at(q), queries.at(q) + queries.dimensions}};
        for (uint32_t some : {5u, 50u, n / 3}) {
            for (bool far : {false, true}) {
                Filter filter(n / 64 + 1);
                for (uint32_t i = 0; i < some; i++) {
                    uint32_t slot = order[far ? n - 1 - i : i];
                    filter[slot / 64] |= uint64_t(1) << (slot % 64);
                }
                Search search;
                search.filter = &filter;
                check_index(far ? "the farthest" : "the nearest", index, one, search, 1);
            }
        }
    }

    TEST("filters that nothing passes, or one row");
    Filter filter(n / 64 + 1);
    Search search;
    search.filter = &filter;
    check_index("none", index, queries, search, 1);
    for (uint32_t slot : {0u, 63u, 64u, 65u, n / 2, n - 1}) {
        Filter one(n / 64 + 1);
        one[slot / 64] |= uint64_t(1) << (slot % 64);
        search.filter = &one;
        check_index("one", index, queries, search, 1);
    }
}

static void test_values()
{
    TEST("equal rows come by slot");
    for (Metric metric : kMetrics) {
        for (Storage storage : kStorages) {
            Data rows = random_data(600, 20, 8, 0);
            for (uint32_t i = 0; i < rows.n; i++)
                std::copy_n(rows.at(0), 20, rows.at(i));
            Data queries = random_data(3, 20, 8, 1);
            Index index = make_index(rows, flat(metric, storage));
            for (const Subject &subject : all()) {
                Mirror mirror(subject, index);
                for (uint32_t k : {1u, 33u, 600u}) {
                    Search search;
                    search.k = k;
                    for (const Hits &hits : parity::search(mirror, subject.stream, search, queries)) {
                        bool good = hits.size() == k;
                        for (uint32_t i = 0; i < hits.size(); i++)
                            good = good && hits[i].slot == i && hits[i].key == hits[0].key;
                        CHECK(good, "%s: %s %s, k %u", subject.name.c_str(), metric_name(metric), storage_name(storage),
                              k);
                    }
                }
            }
        }
    }

    TEST("half of the rows equal, zero rows, zero queries");
    Data rows = random_data(900, 10, 9, 0), queries = random_data(6, 10, 9, 1);
    for (uint32_t i = 0; i < rows.n; i++) {
        if (i % 2)
            std::copy_n(rows.at(1), 10, rows.at(i));
        else if (i % 10 == 0)
            std::fill_n(rows.at(i), 10, i % 20 ? 0.0f : -0.0f);
    }
    std::copy_n(rows.at(1), 10, queries.at(0));
    std::fill_n(queries.at(1), 10, 0.0f);
    for (Metric metric : kMetrics)
        for (Storage storage : kStorages)
            check_index((std::string(metric_name(metric)) + " " + storage_name(storage)).c_str(),
                        make_index(rows, flat(metric, storage)), queries, Search(), 1);

    TEST("rows scaled by 10000, by 0.0001, moved by 1000");
    for (int change = 0; change < 3; change++) {
        Data scaled = random_data(800, 50, 10, 0), asked = random_data(6, 50, 10, 1);
        for (Data *data : {&scaled, &asked})
            for (float &x : data->floats)
                x = change == 0 ? x * 1e4f : change == 1 ? x * 1e-4f : x + 1000;
        for (Metric metric : kMetrics)
            for (Storage storage : kStorages)
                check_index((std::to_string(change) + " " + metric_name(metric) + " " + storage_name(storage)).c_str(),
                            make_index(scaled, flat(metric, storage)), asked, Search(), 1);
    }

    TEST("rows find themselves");
    for (Metric metric : {Metric::L2, Metric::Cosine}) {
        for (float factor : {1.0f, 1e4f, 1e-4f}) {
            Data own = random_data(500, 40, 11, 0);
            for (float &x : own.floats)
                x *= factor;
            Data asked = own;
            Index index = make_index(own, flat(metric, Storage::Float32));
            for (const Subject &subject : all()) {
                Mirror mirror(subject, index);
                Search search;
                search.k = 1;
                std::vector<Hits> hits = parity::search(mirror, subject.stream, search, asked);
                for (uint32_t i = 0; i < asked.n; i++)
                    CHECK(hits[i].size() == 1 && hits[i][0].slot == i &&
                              (metric == Metric::L2 ? hits[i][0].key == 0 : std::fabs(hits[i][0].key) < 1e-6),
                          "%s: %s, row %u: slot %u, key %g", subject.name.c_str(), metric_name(metric), i,
                          hits[i].empty() ? kNone : hits[i][0].slot, hits[i].empty() ? 0 : double(hits[i][0].key));
            }
        }
    }
}

void test_exact()
{
    test_kinds();
    test_sizes();
    test_states();
    test_filters();
    test_values();
}

} // namespace parity
