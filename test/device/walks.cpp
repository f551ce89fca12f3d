/*
 * walks.cpp: the graph form: metrics, storages, cells, twins, dead rows, filters, damaged links, batches; the host device against the
 * search of core over the same graph; figures on the SIFT sample.
 */
#include "parity.h"

#include <algorithm>
#include <ctime>

namespace parity {

/* A walk needs more than 32 ef nodes, or it is an exact search. */
static constexpr uint32_t kNodes = kSlow ? 1100 : 3000;
static constexpr uint32_t kEf = kSlow ? 24 : 48;
static constexpr uint32_t kQueries = kSlow ? 20 : 200;

static Search walk(uint32_t k = 10, const Filter *filter = nullptr)
{
    return {SearchForm::Graph, k, kEf, filter};
}

static void test_kinds()
{
    Data rows = random_data(kNodes, 24, 1, 0), queries = random_data(kQueries, 24, 1, 1);
    for (Metric metric : {Metric::L2, Metric::InnerProduct, Metric::Cosine}) {
        for (Storage storage : {Storage::Float32, Storage::Float16, Storage::BFloat16, Storage::Int8}) {
            std::string what = std::string(metric_name(metric)) + " " + storage_name(storage);
            TEST(("graph, " + what).c_str());
            Options options;
            options.metric = metric;
            options.storage = storage;
            Grower grower(rows, options);
            Index index = grower.grow(rows.n);
            check_index(what.c_str(), index, queries, walk(), 0.95);

            /* The reference walks as the scan over the pages does, to the last bit. */
            const Subject &host = all()[0];
            Mirror mirror(host, index);
            for (uint32_t k : {1u, 10u, kEf / 2 + 1, kEf}) {
                for (uint32_t ef : {k, kEf / 2, kEf, kNodes / 40, kNodes / 33, kNodes / 30}) {
                    if (ef < k)
                        continue;
                    Search search = {SearchForm::Graph, k, ef, nullptr};
                    std::vector<Hits> hits = parity::search(mirror, host.stream, search, queries);
                    for (uint32_t q = 0; q < queries.n; q += 5) {
                        std::vector<Found> found = grower.walk(queries.at(q), k, ef);
                        bool good = found.size() == hits[q].size();
                        for (size_t i = 0; good && i < found.size(); i++)
                            good = found[i] == Found{hits[q][i].slot, hits[q][i].key};
                        CHECK(good, "query %u, k %u, ef %u is not what core finds", q, k, ef);
                    }
                }
            }
        }
    }
}

static void test_shapes()
{
    Data rows = random_data(kNodes, 17, 2, 0), queries = random_data(kQueries, 17, 2, 1);
    for (uint32_t m : {2u, 5u, 7u, 16u}) {
        TEST(("cells of 2, 3 and 4 bytes, m " + std::to_string(m)).c_str());
        for (const Subject &subject : all()) {
            std::vector<Hits> first;
            for (uint8_t width : {4, 3, 2}) {
                Options options;
                options.m = m;
                options.width = width;
                Index index = make_index(rows, options);
                Mirror mirror(subject, index);
                std::vector<Hits> hits = parity::search(mirror, subject.stream, walk(), queries);
                if (first.empty())
                    first = hits;
                for (uint32_t q = 0; q < queries.n; q++)
                    CHECK(same(first[q], hits[q]), "%s: m %u, width %u, query %u", subject.name.c_str(), m, width, q);
            }
        }
        Options options;
        options.m = m;
        options.width = m % 2 ? 3 : 2;
        check_index(("m " + std::to_string(m)).c_str(), make_index(rows, options), queries, walk(), m == 2 ? 0.5 : 0.9);
    }

    for (uint32_t dimensions : {1u, 128u, 1000u}) {
        TEST(("graph, " + std::to_string(dimensions) + " dimensions").c_str());
        uint32_t n = dimensions == 1000 ? kNodes / 2 : kNodes;
        Data some = random_data(n, dimensions, 3, 0), asked = random_data(kQueries / 4, dimensions, 3, 1);
        Search search = walk();
        search.ef = kEf / 2;
        check_index("dimensions", make_index(some, Options()), asked, search, dimensions == 1 ? 0.9 : 0.8);
    }

    TEST("one node, few nodes, layers above on few nodes");
    for (uint32_t n : {1u, 2u, 3u, 33u, 70u}) {
        Data some = rows;
        some.n = n;
        Options options;
        options.m = 2;
        for (uint32_t k : {1u, 2u, 5u}) {
            Search search = {SearchForm::Graph, k, k, nullptr}; /* 70 nodes and ef 1 are a walk */
            measure_index(std::to_string(n).c_str(), make_index(some, options), queries, search, nullptr);
        }
    }
}

static void test_rows()
{
    Data rows = random_data(kNodes, 24, 4, 0), queries = random_data(kQueries, 24, 4, 1);
    TEST("twins: the last cell is no link");
    std::vector<uint8_t> twins(rows.n);
    for (uint32_t i = 0; i < rows.n; i += 2)
        twins[i] = 1;
    for (uint8_t width : {2, 3, 4}) {
        Options options;
        options.twins = &twins;
        options.width = width;
        Index index = make_index(rows, options);
        check_index("twins", index, queries, walk(), 0.95);
        /* Rows of half of the nodes with twins are dead, the nodes are returned all the same. */
        for (uint32_t i = 0; i < rows.n; i += 4)
            index.set_meta(i, kRowDead | kRowHasTwins);
        check_index("dead rows with twins", index, queries, walk(), 0.95);
    }

    Index index = make_index(rows, Options());
    for (double share : {0.2, 0.8, 0.99}) {
        TEST(("dead nodes are way points, " + std::to_string(share)).c_str());
        Index dying = index;
        test::Random random(5);
        for (uint32_t i = 0; i < rows.n; i++)
            if (random.uniform() < share)
                dying.set_meta(i, i % 2 ? kRowDead : kRowDead | kRowKilled);
        check_index("dead", dying, queries, walk(), 0.95);
        check_index("dead, k beyond what lives", dying, queries, walk(kNodes), 1);
    }

    TEST("filters on a graph");
    Judge judge(index);
    for (double share : {0.9, 0.3, 0.1, 0.03, 0.005, 0.0}) {
        Filter filter = random_filter(rows.n, share, 6);
        check_index(("filter of " + std::to_string(share)).c_str(), index, queries, walk(10, &filter), 0.95);
    }

    TEST("filters that leave enough for a walk");
    for (double share : {0.9, 0.6, 0.4}) {
        Filter filter = random_filter(rows.n, share, 16);
        Search search = {SearchForm::Graph, 5, kSlow ? 8u : 12u, &filter};
        check_index(("walk under a filter of " + std::to_string(share)).c_str(), index, queries, search, 0.8);
        search.k = 20; /* more than ef says */
        check_index(("20 under a filter of " + std::to_string(share)).c_str(), index, queries, search, 0.8);
    }

    TEST("filters that go with the query, or against it, on a graph");
    Recalls wide, narrow;
    for (uint32_t q = 0; q < queries.n; q += 10) {
        Truth truth = judge.truth(queries.at(q));
        std::vector<uint32_t> order(rows.n);
        for (uint32_t i = 0; i < rows.n; i++)
            order[i] = i;
        std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return truth.keys[a] < truth.keys[b]; });
        Data one = {1, queries.dimensions, {queries.at(q), queries.at(q) + queries.dimensions}};
        for (uint32_t some : {3u, rows.n / 10, rows.n / 2}) {
            for (bool far : {false, true}) {
                Filter filter(rows.n / 64 + 1);
                for (uint32_t i = 0; i < some; i++) {
                    uint32_t slot = order[far ? rows.n - 1 - i : i];
                    filter[slot / 64] |= uint64_t(1) << (slot % 64);
                }
                measure_index(far ? "the farthest" : "the nearest", index, one, walk(10, &filter), &wide);
                measure_index(far ? "the farthest, ef 8" : "the nearest, ef 8", index, one,
                              {SearchForm::Graph, 5, 8, &filter}, &narrow);
            }
        }
    }
    wide.check("filters that go with the query", 0.95);
    narrow.check("filters that go with the query, ef 8", 0.8);

    TEST("a graph over equal rows, zero rows and scaled rows");
    for (float factor : {1.0f, 1e4f, 1e-4f}) {
        Data mixed = rows, asked = queries;
        for (Data *data : {&mixed, &asked})
            for (float &x : data->floats)
                x *= factor;
        for (uint32_t i = 0; i < mixed.n; i += 5)
            std::copy_n(mixed.at(i % 2), 24, mixed.at(i));
        std::fill_n(mixed.at(7), 24, 0.0f);
        std::copy_n(mixed.at(0), 24, asked.at(0));
        for (Metric metric : {Metric::L2, Metric::Cosine, Metric::InnerProduct}) {
            Options options;
            options.metric = metric;
            check_index(metric_name(metric), make_index(mixed, options), asked, walk(), 0.9);
        }
    }

    TEST("rows find themselves by the graph");
    Data own = rows;
    own.n = kNodes / 4;
    for (const Subject &subject : all()) {
        Mirror mirror(subject, index);
        std::vector<Hits> hits = parity::search(mirror, subject.stream, walk(1), own);
        uint32_t good = 0;
        for (uint32_t i = 0; i < own.n; i++)
            good += hits[i].size() == 1 && hits[i][0].slot == i && hits[i][0].key == 0;
        CHECK(good >= own.n * 0.99, "%s: %u of %u", subject.name.c_str(), good, own.n);
    }
}

/* Links are hints: any bytes may be there. Answers are sound and complete. */
static void test_damage()
{
    Data rows = random_data(kNodes, 24, 7, 0), queries = random_data(kQueries / 2, 24, 7, 1);
    Index good = make_index(rows, Options());
    TEST("no links at all");
    Index index = good;
    std::fill(index.links.begin(), index.links.end(), 0xff);
    measure_index("no links", index, queries, walk(), nullptr);
    index.nodes = 100;
    index.upper = 0;
    index.vectors.resize(size_t(100) * index.record_bytes(Region::Vectors));
    measure_index("no links, 100 nodes", index, queries, {SearchForm::Graph, 1, 1, nullptr}, nullptr);

    TEST("the reference looks at all nodes when a walk ends early");
    index.entry_handle = 0;
    index.entry_level = 0;
    for (uint32_t slot = 0; slot < 3; slot++)
        for (uint32_t j = 0; j < 3; j++)
            store_cell(index.links.data() + size_t(slot) * index.record_bytes(Region::Links), j, index.width, j);
    Judge judge(index);
    Mirror mirror(all()[0], index);
    Search two = {SearchForm::Graph, 2, 2, nullptr};
    std::vector<Hits> hits = parity::search(mirror, all()[0].stream, two, queries);
    for (uint32_t q = 0; q < queries.n; q++)
        judge.check_exact("three nodes with links", index, two, judge.truth(queries.at(q)), hits[q]);

    TEST("no layer above");
    index = good;
    uint32_t bytes = index.record_bytes(Region::Upper);
    for (size_t i = 0; i < index.upper_records.size(); i++)
        if (i % bytes >= sizeof(UpperRecord))
            index.upper_records[i] = 0xff;
    measure_index("no layer above", index, queries, walk(), nullptr);

    TEST("any bytes in all cells");
    for (uint8_t width : {2, 3, 4}) {
        Options options;
        options.width = width;
        index = make_index(rows, options);
        test::Random random(8);
        for (uint8_t &byte : index.links)
            byte = uint8_t(random.next());
        measure_index("links", index, queries, walk(), nullptr);
        for (size_t i = 0; i < index.upper_records.size(); i++)
            if (i % bytes >= sizeof(UpperRecord))
                index.upper_records[i] = uint8_t(random.next());
        measure_index("links and layers", index, queries, walk(), nullptr);
        for (uint8_t &byte : index.upper_records)
            byte = uint8_t(random.next());
        measure_index("links, layers and slots of layers", index, queries, walk(), nullptr);
    }

    TEST("entry points that are none");
    for (uint32_t handle : {kNone, good.upper, good.nodes, 0u}) {
        for (int32_t level : {-1, 0, 1, 5, 1000}) {
            index = good;
            index.entry_handle = handle;
            index.entry_level = level;
            measure_index("entry", index, queries, walk(), nullptr);
        }
    }

    TEST("nodes beyond the state are not there, though links lead to them");
    for (uint32_t n : {kNodes - 1, kNodes * 3 / 4}) {
        index = good;
        index.nodes = n;
        index.vectors.resize(size_t(n) * index.record_bytes(Region::Vectors));
        check_index("fewer", index, queries, walk(), 0.9);
        index.upper /= 2;
        measure_index("fewer, and fewer above", index, queries, walk(), nullptr);
        /* Whether records beyond the state exist makes no difference. */
        for (const Subject &subject : all()) {
            Mirror without(subject, index), with(subject, good);
            with.commit(index);
            std::vector<Hits> a = parity::search(without, subject.stream, walk(), queries);
            std::vector<Hits> b = parity::search(with, subject.stream, walk(), queries);
            for (uint32_t q = 0; q < queries.n; q++)
                CHECK(same(a[q], b[q]), "%s: %u nodes, query %u", subject.name.c_str(), n, q);
        }
    }
}

/*
 * The CUDA device deals the nodes of a round out to the blocks of a cluster by this hash, and has room for half of them a
 * block. If all links lead to nodes of one block it must take another way, to the same rows.
 */
static bool of_first_block(uint32_t slot)
{
    slot ^= slot >> 16;
    slot *= 0x85EBCA6Bu;
    slot ^= slot >> 13;
    return slot % 8 == 0;
}

static void test_crowd()
{
    constexpr uint32_t kRows = 32000, kAsked = 24;
    Data rows = random_data(kRows, 8, 12, 0), queries = random_data(kAsked, 8, 12, 1);
    Options options;
    options.ef_construction = 8; /* its links are not used */
    Index index = make_index(rows, options);
    std::vector<uint32_t> crowd;
    for (uint32_t slot = 0; slot < kRows; slot++)
        if (of_first_block(slot))
            crowd.push_back(slot);
    test::Random random(13);
    for (uint32_t slot = 0; slot < kRows; slot++)
        for (uint32_t j = 0; j < 2 * index.m; j++)
            store_cell(index.links.data() + size_t(slot) * index.record_bytes(Region::Links), j, index.width,
                       crowd[random.below(uint32_t(crowd.size()))]);
    Judge judge(index);
    for (uint32_t ef : {64u, 300u})
        for (const Subject &subject : all()) {
            TEST((subject.name + ": links to the nodes of one block, ef " + std::to_string(ef)).c_str());
            Mirror mirror(subject, index);
            Search search = {SearchForm::Graph, 10, ef, nullptr};
            std::vector<Hits> one = parity::search(mirror, subject.stream, search, queries, 1);
            for (uint32_t q = 0; q < kAsked; q++)
                judge.check_sound("crowd", index, search, judge.truth(queries.at(q)), one[q]);
            for (uint32_t batch : {2u, 12u, 13u, kAsked}) {
                std::vector<Hits> hits = parity::search(mirror, subject.stream, search, queries, batch);
                for (uint32_t q = 0; q < kAsked; q++)
                    CHECK(same(one[q], hits[q]), "batch of %u, query %u", batch, q);
            }
        }
}

static void test_batches()
{
    uint32_t most = 64; /* enough for every form that a device has */
    for (const Subject &subject : all())
        most = std::max(most, std::min(subject.info.max_batch, kSlow ? 64u : 3000u));
    Data rows = random_data(kNodes, 24, 9, 0), queries = random_data(most, 24, 9, 1), shuffled = queries;
    std::vector<uint32_t> order(most);
    for (uint32_t i = 0; i < most; i++)
        order[i] = most - 1 - (i ^ 1) % most; /* neighbours change places, and all is turned round */
    for (uint32_t i = 0; i < most; i++)
        std::copy_n(queries.at(order[i]), 24, shuffled.at(i));
    Index index = make_index(rows, Options());
    test::Random random(10); /* dead rows */
    for (uint32_t i = 0; i < rows.n; i++)
        if (random.below(10) == 0)
            index.set_meta(i, kRowDead);
    Filter filter = random_filter(rows.n, 0.7, 11);
    for (const Subject &subject : all()) {
        Mirror mirror(subject, index);
        for (SearchForm form : {SearchForm::Exact, SearchForm::Graph}) {
            for (const Filter *through : {(const Filter *)nullptr, (const Filter *)&filter}) {
                TEST((subject.name + ", " + (form == SearchForm::Exact ? "exact" : "graph") +
                      (through ? ", filter" : "") + ": the same in every batch")
                         .c_str());
                Search search = {form, 10, kEf / 2, through}; /* a walk, with the filter too */
                std::vector<Hits> one = parity::search(mirror, subject.stream, search, queries, 1);
                for (uint32_t batch = 2; batch <= subject.info.max_batch; batch += batch < 66 ? 1 : batch / 2) {
                    Data part = queries;
                    part.n = std::min(queries.n, batch + batch / 2);
                    std::vector<Hits> hits = parity::search(mirror, subject.stream, search, part, batch);
                    for (uint32_t q = 0; q < part.n; q++)
                        CHECK(same(one[q], hits[q]), "batch of %u, query %u", batch, q);
                }
                std::vector<Hits> hits = parity::search(mirror, subject.stream, search, shuffled);
                for (uint32_t q = 0; q < most; q++)
                    CHECK(same(one[order[q]], hits[q]), "in another order, query %u", q);
            }
        }
    }
}

void test_graph()
{
    test_kinds();
    test_shapes();
    test_rows();
    test_damage();
    test_crowd();
    test_batches();
}

static double seconds(clockid_t clock)
{
    timespec now;
    clock_gettime(clock, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

void test_sample(const char *folder)
{
    Data rows = read_sample(folder, "base.u8bin"), queries = read_sample(folder, "query.u8bin");
    if (rows.n == 0 || queries.n == 0) {
        test::note("no sample in %s: left out", folder);
        return;
    }
    rows.n /= kSlow ? 8 : 1;
    queries.n = kSlow ? 40 : 200;
    Options options;
    options.m = 16;
    options.ef_construction = 64;
    Index index = make_index(rows, options);
    TEST("the SIFT sample");
    check_index("sample, ef 20", index, queries, {SearchForm::Graph, 10, 20, nullptr}, 0.93);
    check_index("sample, ef 100", index, queries, {SearchForm::Graph, 10, kSlow ? 70u : 100u, nullptr}, 0.99);
    TEST("the SIFT sample under filters");
    for (double share : {0.31, 0.088, 0.027, 0.002}) {
        Filter filter = random_filter(rows.n, share, 1);
        check_index(("sample under a filter of " + std::to_string(share)).c_str(), index, queries,
                    {SearchForm::Graph, 10, kSlow ? 16u : 64u, &filter}, 0.98);
    }
}

void bench(const char *folder)
{
    Data rows = read_sample(folder, "base.u8bin"), queries = read_sample(folder, "query.u8bin");
    if (rows.n == 0 || queries.n == 0) {
        test::note("no sample in %s", folder);
        return;
    }
    Options options;
    options.m = 16;
    options.ef_construction = 64;
    Index index = make_index(rows, options);
    Judge judge(index);
    for (const Subject &subject : all()) {
        Mirror mirror(subject, index);
        for (SearchForm form : {SearchForm::Graph, SearchForm::Exact}) {
            for (uint32_t ef : {40u, 64u, 100u, 200u}) {
                for (uint32_t batch : {1u, 16u, 64u}) {
                    if (form == SearchForm::Exact && ef != 64)
                        continue;
                    Search search = {form, 10, ef, nullptr};
                    std::vector<Hits> hits = parity::search(mirror, subject.stream, search, queries, batch);
                    double recall = 0;
                    for (uint32_t q = 0; q < 100; q++)
                        recall += judge.recall(index, search, judge.truth(queries.at(q)), hits[q]) / 100;
                    double start = seconds(CLOCK_MONOTONIC), cpu = seconds(CLOCK_THREAD_CPUTIME_ID), time;
                    double asked = 0;
                    for (; (time = seconds(CLOCK_MONOTONIC) - start) < 1; asked += queries.n)
                        parity::search(mirror, subject.stream, search, queries, batch);
                    cpu = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu;
                    test::note("%s: %s, ef %u, batches of %u: %.0f queries/s, %.1f us of CPU each, recall %.4f",
                               subject.name.c_str(), form == SearchForm::Graph ? "graph" : "exact", ef, batch,
                               asked / time, 1e6 * cpu / asked, recall);
                }
            }
        }
    }
}

} // namespace parity
