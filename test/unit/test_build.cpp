/*
 * test_build.cpp: the in-memory builder: recall, threads, stop, growth, equal and parallel vectors, and the shape of the graph.
 */
#include "graph_source.h"

#include <csignal>
#include <ctime>
#include <unistd.h>

using namespace test;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static constexpr uint32_t kScale = 8; /* sanitizers are slow: smaller sets, same checks */
#else
static constexpr uint32_t kScale = 1;
#endif

/* test_memory() asks malloc for more than there is. */
extern "C" const char *__asan_default_options()
{
    return "allocator_may_return_null=1";
}
extern "C" const char *__tsan_default_options()
{
    return "allocator_may_return_null=1";
}

static const char *const kMetricNames[] = {"", "L2", "inner product", "cosine"};

static Rows random_rows(uint32_t n, uint32_t dimensions, uint64_t seed)
{
    Rows rows;
    rows.n = n;
    rows.dimensions = dimensions;
    rows.floats.resize(size_t(n) * dimensions);
    Random random(seed);
    /* Around some centres: neither one ball nor apart. */
    std::vector<float> centres(20 * dimensions);
    for (float &x : centres)
        x = random.symmetric() * 2;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t centre = random.below(20);
        for (uint32_t j = 0; j < dimensions; j++)
            rows.floats[size_t(i) * dimensions + j] = centres[centre * dimensions + j] + random.normal();
    }
    return rows;
}

static BuildParams make_params(const Rows &rows, Metric metric, uint32_t ef_construction, uint32_t threads)
{
    BuildParams params = {metric, rows.storage, rows.dimensions, ef_construction, 0, threads, true, false};
    if (metric == Metric::InnerProduct) {
        std::vector<float> scratch(rows.dimensions);
        params.max_norm = largest_norm(rows.storage, rows.data(), rows.n, rows.dimensions, scratch.data());
    }
    return params;
}

/* Ids in range, no node twice in a list, no link to itself, padding at the end, upper lists among nodes of that level. */
static void check_shape(const OwnedGraph &owned)
{
    const Graph &g = owned.graph;
    for (uint32_t slot = 0; slot < g.count; slot++) {
        for (int l = 0; l <= g.levels[slot]; l++) {
            uint32_t width = l == 0 ? 2 * g.m : g.m;
            const uint32_t *cells =
                l == 0 ? g.links0 + size_t(slot) * width : g.upper + (size_t(g.upper_offset[slot]) + l - 1) * g.m;
            std::vector<uint32_t> ids;
            bool ended = false;
            for (uint32_t i = 0; i < width; i++) {
                if (cells[i] == kNone) {
                    ended = true;
                    continue;
                }
                CHECK(!ended, "a gap in the list of %u", slot);
                CHECK(cells[i] < g.count && cells[i] != slot, "link of %u to %u", slot, cells[i]);
                CHECK(cells[i] >= g.count || g.levels[cells[i]] >= l, "link of %u on level %d to %u", slot, l,
                      cells[i]);
                ids.push_back(cells[i]);
            }
            std::sort(ids.begin(), ids.end());
            CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end(), "node %u has a neighbour twice", slot);
            if (l == 0 && g.reserved && g.reserved[slot])
                CHECK(ids.size() < width, "node %u uses its reserved cell", slot);
        }
        CHECK(g.locks[slot] == 0, "node %u is locked", slot);
    }
    if (g.count > 0) {
        CHECK(g.entry < g.count && g.entry_level == g.levels[g.entry], "entry point");
        for (uint32_t slot = 0; slot < g.count; slot++)
            CHECK(g.levels[slot] <= g.entry_level, "node %u is above the entry point", slot);
    }
}

static uint32_t count_unreachable(const OwnedGraph &owned)
{
    const Graph &g = owned.graph;
    if (g.count == 0)
        return 0;
    std::vector<bool> reached(g.count);
    std::vector<uint32_t> queue = {g.entry};
    reached[g.entry] = true;
    for (size_t i = 0; i < queue.size(); i++) {
        const uint32_t *cells = g.links0 + size_t(queue[i]) * 2 * g.m;
        for (uint32_t j = 0; j < 2 * g.m && cells[j] != kNone; j++) {
            if (!reached[cells[j]]) {
                reached[cells[j]] = true;
                queue.push_back(cells[j]);
            }
        }
    }
    return g.count - uint32_t(queue.size());
}

static double recall(const OwnedGraph &owned, const Rows &rows, const Rows &queries, Metric metric, uint32_t ef)
{
    const uint32_t k = 10;
    uint64_t good = 0, all = 0;
    for (uint32_t q = 0; q < queries.n; q++) {
        Query query = make_query(queries.vector(q), rows.dimensions, metric, rows.storage);
        std::vector<float> exact = exact_keys(query, rows, k);
        GraphSource source(owned, rows.data(), query);
        Stream<GraphSource> stream;
        stream.init(&source, kHeap, ef, UINT64_MAX);
        uint32_t slot = kNone;
        float key = 0;
        for (uint32_t i = 0; i < exact.size() && stream.next(&slot, &key); i++)
            good += key <= exact.back() + (metric == Metric::Cosine ? 1e-6f : 0); /* mates differ by rounding */
        all += exact.size();
        stream.release();
    }
    return double(good) / double(all);
}

static Rows first_rows(const Rows &from, uint32_t n)
{
    Rows rows = from;
    rows.n = std::min(n, from.n);
    rows.floats.resize(size_t(rows.n) * rows.dimensions);
    return rows;
}

static void test_sample(const std::string &folder)
{
    Rows all = read_u8bin(folder + "/base.u8bin"), queries = read_u8bin(folder + "/query.u8bin");
    if (all.n == 0 || queries.n == 0) {
        note("no sample in %s: random rows instead", folder.c_str());
        all = random_rows(20000, 128, 1);
        queries = random_rows(500, 128, 1); /* the same centres */
    }
    all = first_rows(all, all.n / kScale);
    queries = first_rows(queries, 300 / kScale);
    for (Metric metric : {Metric::L2, Metric::InnerProduct, Metric::Cosine}) {
        TEST((std::string("recall on the sample, ") + kMetricNames[int(metric)]).c_str());
        OwnedGraph owned(all.n, 16);
        owned.add(all.n);
        BuildControl control;
        CHECK(build_graph(&owned.graph, all.data(), 0, all.n, make_params(all, metric, 64, 2), &control) == BuildStatus::Ok,
              "status");
        CHECK(control.done.load() == all.n, "done");
        check_shape(owned);
        CHECK(count_unreachable(owned) == 0 && control.unreachable.load() == 0, "unreachable nodes");
        double at_40 = recall(owned, all, queries, metric, 40), at_200 = recall(owned, all, queries, metric, 200);
        note("%s: recall@10 %.4f at ef 40, %.4f at ef 200; %u nodes linked afterwards", kMetricNames[int(metric)],
             at_40, at_200, control.linked.load());
        CHECK(at_200 >= 0.99, "recall at ef 200");
        CHECK(at_40 >= 0.96, "recall at ef 40");
    }
    for (Storage storage : {Storage::Float16, Storage::BFloat16, Storage::Int8}) {
        TEST((std::string("recall on the sample, storage ") + std::to_string(int(storage))).c_str());
        Rows rows = first_rows(all, 4000 / kScale);
        rows.encode(storage);
        Metric metric = storage == Storage::Float16    ? Metric::L2
                        : storage == Storage::BFloat16 ? Metric::Cosine
                                                       : Metric::InnerProduct;
        OwnedGraph owned(rows.n, 16);
        owned.add(rows.n);
        BuildControl control;
        CHECK(build_graph(&owned.graph, rows.data(), 0, rows.n, make_params(rows, metric, 64, 1), &control) ==
                  BuildStatus::Ok,
              "status");
        check_shape(owned);
        CHECK(count_unreachable(owned) == 0, "unreachable nodes");
        double at_200 = recall(owned, rows, queries, metric, 200);
        CHECK(at_200 >= 0.99, "recall %.4f", at_200);
    }
}

static Builder *start_all(OwnedGraph *owned, const Rows &rows, uint32_t ef_construction, uint32_t threads, BuildControl *control)
{
    owned->add(rows.n);
    Builder *builder = nullptr;
    BuildParams params = make_params(rows, Metric::L2, ef_construction, threads);
    CHECK(build_start(&builder, &owned->graph, rows.data(), 0, rows.n, params, control) == BuildStatus::Ok, "start");
    return builder;
}

static void test_threads()
{
    Rows rows = random_rows(8000 / kScale, 24, 2), queries = random_rows(100, 24, 2);
    for (uint32_t threads : {0u, 1u, 2u, 4u, 16u}) {
        TEST((std::to_string(threads) + " threads").c_str());
        uint64_t polls = 0;
        /* Whoever is held up for the whole build looks at it once, when all is done: that shows nothing of its progress. */
        for (int attempt = 0; attempt < 10 && polls == 0; attempt++) {
            OwnedGraph owned(rows.n, 8);
            BuildControl control;
            Builder *builder = start_all(&owned, rows, 40, threads, &control);
            CHECK(build_threads(builder) == threads, "%u threads", build_threads(builder));
            uint64_t before = 0;
            while (!build_poll(builder)) {
                polls++;
                CHECK(control.done.load() >= before, "progress goes forward");
                before = control.done.load();
                if (threads)
                    usleep(500);
            }
            CHECK(build_join(builder) == BuildStatus::Ok, "join");
            CHECK(control.done.load() == rows.n, "done %" PRIu64, control.done.load());
            check_shape(owned);
            CHECK(count_unreachable(owned) == 0, "unreachable nodes");
            double at_100 = recall(owned, rows, queries, Metric::L2, 100);
            CHECK(at_100 >= 0.98, "recall %.4f", at_100);
        }
        CHECK(polls > 0, "nobody was asked to wait");
    }

    TEST("one thread gives the same graph every time");
    OwnedGraph a(rows.n, 8), b(rows.n, 8);
    for (OwnedGraph *owned : {&a, &b}) {
        owned->add(rows.n);
        BuildControl control;
        build_graph(&owned->graph, rows.data(), 0, rows.n, make_params(rows, Metric::L2, 40, owned == &a ? 1 : 0),
                    &control);
    }
    CHECK(a.links0 == b.links0 && a.upper == b.upper && a.graph.entry == b.graph.entry, "graphs differ");
}

static std::atomic<int> signals_here{0}, signals_elsewhere{0};
static pthread_t main_thread;

static void on_signal(int)
{
    (pthread_equal(pthread_self(), main_thread) ? signals_here : signals_elsewhere)++;
}

static void test_stop()
{
    Rows rows = random_rows(20000, 64, 3);
    for (uint32_t threads : {0u, 1u, 4u}) {
        TEST(("stop with " + std::to_string(threads) + " threads").c_str());
        bool stopped = false;
        /* A build that had all nodes before this thread got to stop it shows nothing. */
        for (int attempt = 0; attempt < 10 && !stopped; attempt++) {
            OwnedGraph owned(rows.n, 16);
            BuildControl control;
            Builder *builder = start_all(&owned, rows, 200, threads, &control);
            while (control.done.load() < 600 && !build_poll(builder)) {
            }
            control.stop.store(true);
            BuildStatus status = build_join(builder);
            uint64_t done = control.done.load();
            CHECK(done >= 600 && (status == BuildStatus::Stopped || done == rows.n), "status %d at %" PRIu64, int(status), done);
            stopped = done < rows.n;
            check_shape(owned);
        }
        CHECK(stopped, "it went on to the end");
    }

    TEST("stop before anything");
    OwnedGraph owned(rows.n, 16);
    owned.add(rows.n);
    BuildControl control;
    control.stop.store(true);
    CHECK(build_graph(&owned.graph, rows.data(), 0, rows.n, make_params(rows, Metric::L2, 64, 2), &control) ==
              BuildStatus::Stopped,
          "status");
    CHECK(control.done.load() == 0 && owned.graph.entry == kNone, "nothing was done");

    TEST("signals reach the caller's thread only");
    main_thread = pthread_self();
    struct sigaction action = {}, old;
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR1, &action, &old);
    BuildControl other;
    OwnedGraph again(rows.n, 8);
    again.add(rows.n);
    Builder *builder;
    CHECK(build_start(&builder, &again.graph, rows.data(), 0, rows.n, make_params(rows, Metric::L2, 16, 4), &other) ==
              BuildStatus::Ok,
          "start");
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    CHECK(!sigismember(&mask, SIGUSR1) && !sigismember(&mask, SIGTERM), "the mask is restored");
    for (int i = 0; i < 100; i++) {
        kill(getpid(), SIGUSR1);
        usleep(100);
    }
    other.stop.store(true);
    build_join(builder);
    CHECK(signals_here > 0 && signals_elsewhere == 0, "%d here, %d elsewhere", signals_here.load(),
          signals_elsewhere.load());
    sigaction(SIGUSR1, &old, nullptr);
}

static void test_growth()
{
    TEST("a graph that grows by parts");
    Rows rows = random_rows(6000 / kScale, 24, 4), queries = random_rows(100, 24, 4);
    OwnedGraph owned(rows.n, 8);
    uint32_t first = 0;
    for (uint32_t last : {1u, 2u, 3u, rows.n / 4, rows.n / 2, rows.n / 2, rows.n}) {
        owned.add(last);
        BuildControl control;
        CHECK(build_graph(&owned.graph, rows.data(), first, last, make_params(rows, Metric::L2, 40, 2), &control) ==
                  BuildStatus::Ok,
              "status");
        CHECK(control.done.load() == last - first, "done");
        check_shape(owned);
        CHECK(count_unreachable(owned) == 0, "unreachable nodes of %u", last);
        first = last;
    }
    double at_100 = recall(owned, rows, queries, Metric::L2, 100);
    CHECK(at_100 >= 0.98, "recall %.4f", at_100);

    /* Each part begins with lists whose distances and dominance nobody remembers. */
    TEST("a graph grown by many parts is as good as one made at once");
    for (Metric metric : {Metric::L2, Metric::InnerProduct}) {
        Rows even = random_rows(6000 / kScale, 24, 6), probes = random_rows(200, 24, 6);
        BuildParams params = make_params(even, metric, 40, 1);
        OwnedGraph grown(even.n, 8), whole(even.n, 8);
        BuildControl control;
        first = 0;
        for (uint32_t part = 1; part <= 30; part++) {
            uint32_t last = even.n * part / 30;
            grown.add(last);
            build_graph(&grown.graph, even.data(), first, last, params, &control);
            first = last;
        }
        whole.add(even.n);
        build_graph(&whole.graph, even.data(), 0, even.n, params, &control);
        double by_parts = recall(grown, even, probes, metric, 10), at_once = recall(whole, even, probes, metric, 10);
        note("%s: recall at ef 10 %.4f by parts, %.4f at once", kMetricNames[int(metric)], by_parts, at_once);
        CHECK(by_parts >= at_once - 0.02, "%s: recall %.4f by parts, %.4f at once", kMetricNames[int(metric)], by_parts,
              at_once);
    }

    TEST("nothing to do");
    OwnedGraph empty(0, 8);
    BuildControl control;
    CHECK(build_graph(&empty.graph, nullptr, 0, 0, make_params(rows, Metric::L2, 40, 2), &control) == BuildStatus::Ok,
          "empty graph");
    CHECK(empty.graph.entry == kNone, "no entry point");
}

static void build(OwnedGraph *owned, const Rows &rows, Metric metric, uint32_t ef_construction, uint32_t *linked)
{
    owned->add(rows.n);
    BuildControl control;
    CHECK(build_graph(&owned->graph, rows.data(), 0, rows.n, make_params(rows, metric, ef_construction, 2), &control) ==
              BuildStatus::Ok,
          "status");
    check_shape(*owned);
    CHECK(count_unreachable(*owned) == control.unreachable.load(), "count of unreachable nodes");
    *linked = control.linked.load();
}

static void test_hard_sets()
{
    uint32_t linked;
    TEST("norms from 1 to 20 under inner product: reachable, recall");
    {
        Rows rows, queries;
        Random random(5);
        for (Rows *set : {&rows, &queries}) {
            set->n = set == &rows ? 8000 / kScale : 100;
            set->dimensions = 64;
            for (uint32_t i = 0; i < set->n; i++) {
                float factor = std::exp(3 * random.uniform());
                for (uint32_t j = 0; j < 64; j++)
                    set->floats.push_back(random.uniform() * factor);
            }
        }
        OwnedGraph owned(rows.n, 16);
        build(&owned, rows, Metric::InnerProduct, 64, &linked);
        CHECK(count_unreachable(owned) == 0, "unreachable");
        double at_400 = recall(owned, rows, queries, Metric::InnerProduct, 400);
        note("recall@10 %.4f at ef 400, %u nodes linked afterwards", at_400, linked);
        CHECK(at_400 >= 0.9, "recall");
        /* Rows come out as their own nearest where they are: the longest row is the answer to itself. */
    }

    TEST("rows longer than max_norm");
    {
        Rows rows = random_rows(2000 / kScale, 16, 6);
        OwnedGraph owned(rows.n, 8);
        owned.add(rows.n);
        BuildParams params = make_params(rows, Metric::InnerProduct, 40, 2);
        params.max_norm /= 4;
        BuildControl control;
        CHECK(build_graph(&owned.graph, rows.data(), 0, rows.n, params, &control) == BuildStatus::Ok, "status");
        check_shape(owned);
        CHECK(count_unreachable(owned) == 0, "unreachable");
    }

    TEST("a thousand equal vectors among others");
    {
        Rows rows = random_rows(3000 / kScale, 16, 7);
        for (uint32_t i = 0; i < rows.n; i += 3)
            std::copy_n(rows.vector(1), 16, rows.floats.data() + size_t(i) * 16);
        OwnedGraph owned(rows.n, 8);
        build(&owned, rows, Metric::L2, 40, &linked);
        CHECK(count_unreachable(owned) == 0, "unreachable");
        note("%u nodes linked afterwards", linked);
    }

    TEST("all vectors equal");
    {
        Rows rows = random_rows(1, 16, 8);
        rows.n = 1000 / kScale;
        for (uint32_t i = 1; i < rows.n; i++)
            rows.floats.insert(rows.floats.end(), rows.floats.begin(), rows.floats.begin() + 16);
        OwnedGraph owned(rows.n, 4);
        build(&owned, rows, Metric::Cosine, 16, &linked);
        CHECK(count_unreachable(owned) == 0, "unreachable");
    }

    TEST("clouds at distance zero under cosine: reachable, and the search leaves them");
    {
        /* Forty directions with 200 scaled copies each, and others. */
        Rows rows = random_rows(16000 / kScale, 32, 9), queries = random_rows(100, 32, 9);
        Random random(10);
        for (uint32_t i = 0; i < rows.n; i++) {
            if (i % 2)
                continue;
            float factor = std::exp(random.symmetric() * 3);
            uint32_t direction = 1 + 2 * ((i / 2) % (40 / kScale));
            for (uint32_t j = 0; j < 32; j++)
                rows.floats[size_t(i) * 32 + j] = rows.vector(direction)[j] * factor;
        }
        OwnedGraph owned(rows.n, 16);
        build(&owned, rows, Metric::Cosine, 64, &linked);
        CHECK(count_unreachable(owned) == 0, "unreachable");
        double at_200 = recall(owned, rows, queries, Metric::Cosine, 200);
        note("recall@10 %.4f at ef 200, %u nodes linked afterwards", at_200, linked);
        CHECK(at_200 >= 0.95, "recall");
    }

    TEST("underflow: keys that are all zero");
    {
        Rows rows = random_rows(1000 / kScale, 8, 11);
        for (float &x : rows.floats)
            x *= 1e-30f;
        OwnedGraph owned(rows.n, 4);
        build(&owned, rows, Metric::L2, 16, &linked);
        CHECK(count_unreachable(owned) == 0, "unreachable");
        OwnedGraph other(rows.n, 4);
        build(&other, rows, Metric::Cosine, 16, &linked);
        CHECK(count_unreachable(other) == 0, "unreachable under cosine");
        CHECK(recall(other, rows, first_rows(rows, 50), Metric::Cosine, 100) >= 0.95, "recall under cosine");
    }

    TEST("the smallest m, and few rows");
    for (uint32_t n : {1u, 2u, 3u, 10u, 500u}) {
        Rows rows = random_rows(n, 3, 12);
        OwnedGraph owned(rows.n, 2);
        build(&owned, rows, Metric::L2, 4, &linked);
        CHECK(count_unreachable(owned) == 0, "unreachable of %u", n);
        CHECK(recall(owned, rows, rows, Metric::L2, 200) >= 0.95, "recall of %u", n);
    }

    TEST("reserved cells stay free");
    {
        Rows rows = random_rows(2000 / kScale, 16, 13);
        std::vector<uint8_t> reserved(rows.n);
        for (uint32_t i = 0; i < rows.n; i += 2)
            reserved[i] = 1;
        OwnedGraph owned(rows.n, 4);
        owned.graph.reserved = reserved.data();
        build(&owned, rows, Metric::L2, 32, &linked);
        CHECK(count_unreachable(owned) == 0, "unreachable");
    }
}

static void test_levels()
{
    TEST("levels are geometric and the same every time");
    uint32_t count[kMaxLevel + 1] = {};
    const uint32_t n = 200000;
    for (uint32_t slot = 0; slot < n; slot++) {
        int level = random_level(7, slot, 16);
        CHECK(level >= 0 && level <= kMaxLevel, "level %d", level);
        CHECK(level == random_level(7, slot, 16), "slot %u", slot);
        count[level]++;
    }
    CHECK(std::fabs(count[0] / double(n) - 15.0 / 16) < 0.003, "level 0: %u", count[0]);
    CHECK(std::fabs(count[1] / double(n) - 15.0 / 256) < 0.003, "level 1: %u", count[1]);
    CHECK(random_level(1, 0, 2) >= 0 && random_level(1, kNone - 1, 1000) >= 0, "ends");
    CHECK(graph_count_records(7, 16, 0, n) == graph_count_records(7, 16, 0, 100) + graph_count_records(7, 16, 100, n),
          "records");
}

static void test_memory()
{
    TEST("memory that cannot be had");
    Rows rows = random_rows(10, 8, 14);
    OwnedGraph owned(rows.n, 8);
    owned.add(rows.n);
    Graph huge = owned.graph;
    huge.records = uint64_t(1) << 58; /* the builder asks for room beside them */
    BuildControl control;
    CHECK(build_graph(&huge, rows.data(), 0, rows.n, make_params(rows, Metric::Cosine, 40, 2), &control) ==
              BuildStatus::OutOfMemory,
          "status");
    CHECK(control.done.load() == 0, "nothing was done");
    CHECK(build_memory(owned.graph, make_params(rows, Metric::Cosine, 40, 2), 1000000, 70000) > 64000000, "estimate");
}

int main(int argc, char **argv)
{
    const char *folder = argc > 1 ? argv[1] : getenv("VECGPU_SIFT20K");
    test_levels();
    test_memory();
    test_sample(folder ? folder : "test/data/sift20k");
    test_threads();
    test_stop();
    test_growth();
    test_hard_sets();
    return finish();
}
