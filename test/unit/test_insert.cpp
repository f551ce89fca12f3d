/*
 * test_insert.cpp: Inserter over a store that keeps no distances and hands out copies of rows, as pages do; twins; find_twins.
 */
#include "graph_source.h"

#include "core/insert.h"

#include <csetjmp>
#include <map>

using namespace test;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static constexpr uint32_t kScale = 4;
#else
static constexpr uint32_t kScale = 1;
#endif

struct CopyStore {
    static constexpr bool kStoresAux = false;
    static constexpr bool kStoresKeys = false;

    OwnedGraph *owned;
    const Rows *rows;
    Metric row_metric;
    uint32_t ef;
    float largest = 0;
    uint32_t published = 0;
    uint32_t hidden = kNone; /* a slot whose row is gone */
    uint64_t changes = 0, interrupts = 0, stop_at = UINT64_MAX;
    int locked = 0;
    jmp_buf *jump = nullptr;

    Metric metric() const { return row_metric; }
    Storage storage() const { return rows->storage; }
    uint32_t dimensions() const { return rows->dimensions; }
    uint32_t m() const { return owned->graph.m; }
    uint32_t ef_construction() const { return ef; }
    float max_norm() const { return largest; }
    uint32_t count() const { return owned->graph.count; }
    uint32_t visible() const { return published; }
    const void *row(uint32_t slot, void *scratch) const
    {
        if (slot >= rows->n)
            abort();
        if (slot == hidden)
            return nullptr;
        memcpy(scratch, rows->row(slot), rows->bytes());
        return scratch;
    }
    void prefetch(uint32_t) {}
    void prefetch_links(int, uint32_t) {}
    uint32_t *cells(int level, uint32_t slot) const
    {
        const Graph &g = owned->graph;
        return level == 0 ? g.links0 + size_t(slot) * 2 * g.m
                          : g.upper + (size_t(g.upper_offset[slot]) + level - 1) * g.m;
    }
    uint32_t width(int level) const { return level == 0 ? 2 * owned->graph.m : owned->graph.m; }
    uint32_t links(int level, uint32_t slot, uint32_t *out) const
    {
        uint32_t n = 0;
        while (n < width(level) && cells(level, slot)[n] != kNone) {
            out[n] = cells(level, slot)[n];
            n++;
        }
        return n;
    }
    void set_links(int level, uint32_t slot, const uint32_t *ids, uint32_t n)
    {
        changes++;
        CHECK(locked == 1, "changed without a lock");
        CHECK(n <= capacity(level, slot), "%u links", n);
        for (uint32_t i = 0; i < width(level); i++)
            cells(level, slot)[i] = i < n ? ids[i] : kNone;
    }
    uint32_t capacity(int level, uint32_t slot) const { return width(level) - (level == 0 && slot % 3 == 0); }
    void lock(uint32_t) { CHECK(locked++ == 0, "two locks at once"); }
    void unlock(uint32_t) { CHECK(--locked == 0, "unlock"); }
    void entry(uint32_t *slot, int *level) const
    {
        *slot = owned->graph.entry;
        *level = owned->graph.entry_level;
    }
    void set_entry(uint32_t slot, int level)
    {
        changes++;
        owned->graph.entry = slot;
        owned->graph.entry_level = level;
    }
    bool interrupt()
    {
        interrupts++;
        if (jump && interrupts == stop_at)
            longjmp(*jump, 1);
        return interrupts >= stop_at;
    }
};

static Rows cluster_rows(uint32_t n, uint32_t dimensions, uint64_t seed)
{
    Rows rows;
    rows.n = n;
    rows.dimensions = dimensions;
    Random random(seed);
    for (size_t i = 0; i < size_t(n) * dimensions; i++)
        rows.floats.push_back(float((i / dimensions % 7 + 1) * (i % dimensions + 3) % 7) +
                              random.normal()); /* 7 centres */
    return rows;
}

static double recall(const OwnedGraph &owned, const Rows &rows, const Rows &queries, Metric metric, uint32_t ef)
{
    uint64_t good = 0;
    for (uint32_t q = 0; q < queries.n; q++) {
        Query query = make_query(queries.vector(q), rows.dimensions, metric, rows.storage);
        std::vector<float> exact = exact_keys(query, rows, 10);
        GraphSource source(owned, rows.data(), query);
        Stream<GraphSource> stream;
        stream.init(&source, kHeap, ef, UINT64_MAX);
        uint32_t slot = kNone;
        float key = 0;
        for (uint32_t i = 0; i < 10 && stream.next(&slot, &key); i++)
            good += key <= exact.back();
        stream.release();
    }
    return double(good) / 10 / queries.n;
}

static void test_store()
{
    for (Metric metric : {Metric::L2, Metric::InnerProduct, Metric::Cosine}) {
        for (Storage storage : {Storage::Float32, Storage::Float16, Storage::Int8}) {
            TEST(("one by one, metric " + std::to_string(int(metric)) + ", storage " + std::to_string(int(storage)))
                     .c_str());
            Rows rows = cluster_rows(2000 / kScale, 20, 1), queries = cluster_rows(50, 20, 2);
            rows.encode(storage);
            OwnedGraph owned(rows.n, 8);
            CopyStore store = {&owned, &rows, metric, 40};
            std::vector<float> scratch(20);
            store.largest = largest_norm(storage, rows.data(), rows.n, 20, scratch.data());
            Arena arena;
            Inserter<CopyStore> inserter;
            CHECK(inserter.init(&store, arena.allocator()), "init");
            for (uint32_t slot = 0; slot < rows.n; slot++) {
                owned.add(slot + 1);
                CHECK(inserter.insert(slot, owned.levels[slot], true).kind == InsertResult::Inserted, "slot %u", slot);
            }
            for (uint32_t slot = 0; slot < rows.n; slot++) {
                uint32_t ids[16], n = store.links(0, slot, ids);
                std::sort(ids, ids + n);
                CHECK(n > 0 && std::adjacent_find(ids, ids + n) == ids + n, "links of %u", slot);
                CHECK(!std::binary_search(ids, ids + n, slot), "%u links to itself", slot);
            }
            /* The best inner products of these sets are spread over several clusters: a beam needs its width. */
            double found = recall(owned, rows, queries, metric, metric == Metric::InnerProduct ? 400 : 100);
            CHECK(found >= 0.97, "recall %.4f", found);
            inserter.release();
        }
    }
}

static void test_twins_of_insert()
{
    for (Metric metric : {Metric::L2, Metric::InnerProduct, Metric::Cosine}) {
        TEST(("equal rows are found as twins and change nothing, metric " + std::to_string(int(metric))).c_str());
        for (Storage storage : {Storage::Float32, Storage::BFloat16, Storage::Int8}) {
            const uint32_t n = 600;
            Rows rows = cluster_rows(n, 30, 3);
            for (uint32_t i = n / 2; i < n; i++)
                std::copy_n(rows.vector(i - n / 2), 30, rows.floats.data() + size_t(i) * 30);
            rows.encode(storage);
            OwnedGraph owned(n, 8);
            CopyStore store = {&owned, &rows, metric, 40};
            store.largest = 30;
            Inserter<CopyStore> inserter;
            CHECK(inserter.init(&store, kHeap), "init");
            uint32_t found = 0;
            for (uint32_t slot = 0; slot < n; slot++) {
                owned.add(slot + 1);
                uint64_t changes = store.changes;
                InsertResult result = inserter.insert(slot, owned.levels[slot], true);
                if (slot < n / 2) {
                    CHECK(result.kind == InsertResult::Inserted, "slot %u is new", slot);
                } else if (result.kind == InsertResult::TwinOf) {
                    CHECK(result.head == slot - n / 2, "twin of %u: %u", slot, result.head);
                    CHECK(store.changes == changes, "something was changed");
                    found++;
                }
            }
            CHECK(found >= n / 2 - 3, "storage %d: %u of %u twins", int(storage), found, n / 2);
            inserter.release();
        }
    }

    TEST("mates: every one gets in, and twins among them are found");
    {
        const uint32_t n = 400;
        Rows rows = cluster_rows(n, 12, 4);
        Random random(5);
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t j = 0; j < 12; j++) /* multiples of one row, the last hundred of them a second time */
                rows.floats[size_t(i) * 12 + j] = (1 + float(i % 300)) * rows.floats[j];
        OwnedGraph owned(n, 4);
        CopyStore store = {&owned, &rows, Metric::Cosine, 32};
        Inserter<CopyStore> inserter;
        CHECK(inserter.init(&store, kHeap), "init");
        for (uint32_t slot = 0; slot < 300; slot++) {
            owned.add(slot + 1);
            CHECK(inserter.insert(slot, owned.levels[slot], true).kind == InsertResult::Inserted, "slot %u", slot);
        }
        std::vector<bool> reached(300);
        std::vector<uint32_t> queue = {owned.graph.entry};
        reached[owned.graph.entry] = true;
        for (size_t i = 0; i < queue.size(); i++) {
            uint32_t ids[8], links = store.links(0, queue[i], ids);
            for (uint32_t j = 0; j < links; j++) {
                if (!reached[ids[j]]) {
                    reached[ids[j]] = true;
                    queue.push_back(ids[j]);
                }
            }
        }
        CHECK(queue.size() >= 297, "%zu of 300 reached", queue.size());
        inserter.release();
    }
}

/* What a search sees that began before the newest nodes were published: it skips them, in every list. */
struct EarlierSource : GraphSource {
    uint32_t visible, old_entry;
    int old_level;

    EarlierSource(const OwnedGraph &graph, const void *data, const Query &q, uint32_t nodes, uint32_t entry, int level)
        : GraphSource(graph, data, q), visible(nodes), old_entry(entry), old_level(level)
    {}
    uint32_t count() { return visible; }
    int entry_level() { return old_level; }
    uint32_t entry_handle() { return old_level == 0 ? old_entry : owned->graph.upper_offset[old_entry] + old_level - 1; }
    uint32_t upper_slot(uint32_t handle)
    {
        uint32_t slot = GraphSource::upper_slot(handle);
        return slot < visible ? slot : kNone;
    }
    uint32_t upper_links(uint32_t handle, uint32_t *out)
    {
        uint32_t n = GraphSource::upper_links(handle, out), kept = 0;
        for (uint32_t i = 0; i < n; i++)
            if (upper_slot(out[i]) != kNone)
                out[kept++] = out[i];
        return kept;
    }
};

/* A graph that grows by parts, and searches of what was there before the last one. */
struct GrowingGraph {
    const Rows &rows;
    Metric metric;
    bool by_keys;
    OwnedGraph owned;
    uint32_t before = 0, entry = kNone;
    int level = 0;

    GrowingGraph(const Rows &all, Metric m, bool keys) : rows(all), metric(m), by_keys(keys), owned(all.n, 8) {}

    void grow(uint32_t last)
    {
        before = owned.graph.count;
        entry = owned.graph.entry;
        level = owned.graph.entry_level;
        if (by_keys) {
            owned.add(last);
            BuildParams params = {metric, Storage::Float32, rows.dimensions, 40, 0, 1, false, false};
            BuildControl control;
            CHECK(build_graph(&owned.graph, rows.data(), before, last, params, &control) == BuildStatus::Ok, "status");
            return;
        }
        CopyStore store = {&owned, &rows, metric, 40};
        store.published = before;
        Inserter<CopyStore> inserter;
        CHECK(inserter.init(&store, kHeap), "init");
        for (uint32_t slot = before; slot < last; slot++) {
            owned.add(slot + 1);
            inserter.insert(slot, owned.levels[slot], false);
        }
        inserter.release();
    }

    /* The slots that a search finds among those that were there before the last grow(), nearest first. */
    std::vector<uint32_t> find(const float *vector, uint32_t k, uint32_t ef)
    {
        EarlierSource source(owned, rows.data(), make_query(vector, rows.dimensions, metric, Storage::Float32), before, entry, level);
        Stream<EarlierSource> stream;
        stream.init(&source, kHeap, ef, UINT64_MAX);
        std::vector<uint32_t> found;
        uint32_t slot;
        float key;
        while (found.size() < k && stream.next(&slot, &key) && !stream.swept())
            found.push_back(slot);
        stream.release();
        return found;
    }

    /* Nodes of those before the last grow() that links lead to. */
    uint32_t reachable()
    {
        std::vector<bool> reached(before);
        std::vector<uint32_t> queue = {entry};
        reached[entry] = true;
        for (size_t i = 0; i < queue.size(); i++)
            for (uint32_t j = 0; j < 16; j++) {
                uint32_t id = owned.graph.links0[size_t(queue[i]) * 16 + j];
                if (id < before && !reached[id]) {
                    reached[id] = true;
                    queue.push_back(id);
                }
            }
        return uint32_t(queue.size());
    }
};

static void test_searches_meanwhile()
{
    for (bool by_keys : {false, true}) {
        TEST(by_keys ? "searches meanwhile, threads' store: a group whose way in leads by the newest nodes too"
                     : "searches meanwhile, pages' store: a group whose way in leads by the newest nodes too");
        uint32_t line = 2000 / kScale, group = 8;
        Rows rows;
        rows.dimensions = 3;
        auto put = [&](float x) {
            rows.floats.insert(rows.floats.end(), {x, 0, 0});
            rows.n++;
        };
        for (uint32_t i = 1; i <= line; i++)
            put(i % 4 == 0 ? 1 / float(i) : float(i));
        for (uint32_t i = 1; i <= group; i++)
            put(-1 / float(100000 + i));
        for (uint32_t i = 1; i <= 200; i++)
            put(-1 / float(100100 + i));
        GrowingGraph graph(rows, Metric::L2, by_keys);
        graph.grow(line);
        graph.grow(line + group);
        graph.grow(rows.n);
        const float origin[3] = {0, 0, 0};
        std::vector<uint32_t> found = graph.find(origin, group, 40);
        CHECK(found.size() == group, "%zu found", found.size());
        for (uint32_t slot : found)
            CHECK(slot >= line, "node %u before the group's", slot);

        TEST(by_keys ? "searches meanwhile, threads' store: recall while a quarter comes"
                     : "searches meanwhile, pages' store: recall while a quarter comes");
        Rows many = cluster_rows(4000 / kScale, 20, 7), queries = cluster_rows(100, 20, 8);
        GrowingGraph growing(many, Metric::L2, by_keys);
        auto recall_before = [&] {
            Rows old = many;
            old.n = growing.before;
            uint32_t good = 0;
            for (uint32_t q = 0; q < queries.n; q++) {
                Query query = make_query(queries.vector(q), 20, Metric::L2, Storage::Float32);
                float last = exact_keys(query, old, 10).back();
                for (uint32_t slot : growing.find(queries.vector(q), 10, 40))
                    good += key(query, many.row(slot)) <= last;
            }
            return good / 10.0 / queries.n;
        };
        growing.grow(many.n * 4 / 5);
        growing.grow(many.n * 4 / 5);
        double at_rest = recall_before();
        growing.grow(many.n);
        double meanwhile = recall_before();
        note("recall %.4f at rest, %.4f meanwhile", at_rest, meanwhile);
        CHECK(meanwhile >= at_rest - 0.01, "recall %.4f at rest, %.4f meanwhile", at_rest, meanwhile);

        TEST(by_keys ? "searches meanwhile, threads' store: mates" : "searches meanwhile, pages' store: mates");
        Rows mates = cluster_rows(600, 12, 4);
        for (uint32_t i = 0; i < mates.n; i++)
            for (uint32_t j = 0; j < 12; j++)
                mates.floats[size_t(i) * 12 + j] = (1 + float(i)) * mates.floats[j];
        GrowingGraph cloud(mates, Metric::Cosine, by_keys);
        cloud.grow(300);
        cloud.grow(300);
        uint32_t reached = cloud.reachable();
        cloud.grow(310);
        uint32_t after = cloud.reachable();
        CHECK(after + 2 >= reached, "%u reached, %u before", after, reached);
    }
}

static void test_leaving()
{
    TEST("interrupt ends an insertion before anything is changed, or jumps out");
    Rows rows = cluster_rows(500, 8, 6);
    OwnedGraph owned(rows.n, 8);
    CopyStore store = {&owned, &rows, Metric::L2, 40};
    Inserter<CopyStore> inserter;
    CHECK(inserter.init(&store, kHeap), "init");
    for (uint32_t slot = 0; slot < rows.n; slot++) {
        owned.add(slot + 1);
        uint64_t changes = store.changes, before = store.interrupts;
        store.stop_at = before + 1 + slot % 5;
        InsertResult result = inserter.insert(slot, owned.levels[slot], true);
        if (result.kind == InsertResult::Stopped)
            CHECK(store.changes == changes, "slot %u changed something", slot);
        else
            CHECK(slot < 6, "slot %u was not stopped", slot);
        store.stop_at = UINT64_MAX;
        if (result.kind == InsertResult::Stopped)
            CHECK(inserter.insert(slot, owned.levels[slot], true).kind == InsertResult::Inserted, "again");
    }
    inserter.release();
    static uint64_t at; /* not in a register across longjmp */
    for (at = 1; at < 30; at++) {
        Arena arena;
        jmp_buf jump;
        CopyStore jumper = store;
        jumper.jump = &jump;
        jumper.stop_at = jumper.interrupts + at;
        uint64_t changes = jumper.changes;
        if (setjmp(jump) == 0) {
            Inserter<CopyStore> other;
            other.init(&jumper, arena.allocator());
            other.insert(at % 2 ? 3 : 4, 0, false);
            CHECK(false, "no jump at %" PRIu64, at);
        }
        CHECK(jumper.changes == changes, "changed");
    }

    TEST("a row that is gone is skipped");
    Rows more = cluster_rows(400, 8, 7);
    OwnedGraph other(more.n, 8);
    CopyStore gone = {&other, &more, Metric::L2, 40};
    Inserter<CopyStore> into;
    CHECK(into.init(&gone, kHeap), "init");
    for (uint32_t slot = 0; slot < more.n; slot++) {
        other.add(slot + 1);
        gone.hidden = slot > 50 && other.graph.entry != slot / 2 ? slot / 2 : kNone;
        CHECK(into.insert(slot, other.levels[slot], true).kind == InsertResult::Inserted, "slot %u", slot);
        uint32_t ids[16], n = gone.links(0, slot, ids);
        for (uint32_t i = 0; i < n; i++)
            CHECK(ids[i] != gone.hidden, "slot %u links to a row that is gone", slot);
    }
    into.release();

    TEST("memory that runs out in the middle");
    struct Few {
        int left;
        static void *allocate(void *context, size_t bytes)
        {
            return static_cast<Few *>(context)->left-- > 0 ? malloc(bytes) : nullptr;
        }
        static void release(void *, void *pointer) { free(pointer); }
    };
    for (int left = 0; left < 20; left++) {
        Few few = {left};
        Inserter<CopyStore> poor;
        memset(static_cast<void *>(&poor), 0, sizeof poor);
        bool good = poor.init(&store, {&few, Few::allocate, Few::release});
        CHECK(good == (few.left >= 0), "init with %d blocks", left);
        if (good)
            CHECK(poor.insert(7, 0, false).kind == InsertResult::Inserted, "insert");
        poor.release();
    }
}

static void test_find_twins()
{
    TEST("find_twins against a map");
    Random random(8);
    for (uint32_t size : {4u, 8u, 12u, 28u, 32u, 36u, 100u, 512u}) {
        for (uint32_t n : {0u, 1u, 2u, 1000u}) {
            std::vector<char> rows(size_t(n) * size + 4);
            for (uint32_t i = 0; i < n; i++) {
                memset(rows.data() + size_t(i) * size, int(random.below(2)), size);
                rows[size_t(i) * size + random.below(size)] =
                    char(random.below(3)); /* often equal, often off by one byte */
            }
            std::vector<uint32_t> twin_of(n + 1, 12345);
            Arena arena;
            static int calls;
            calls = 0;
            CHECK(find_twins(
                      rows.data(), size, n, twin_of.data(), arena.allocator(),
                      [](void *c) { ++*static_cast<int *>(c); }, &calls) == BuildStatus::Ok,
                  "status");
            CHECK(arena.blocks.empty() && (n == 0 || calls > 0), "memory given back, interrupt called");
            std::map<std::string, uint32_t> first;
            for (uint32_t i = 0; i < n; i++) {
                std::string bytes(rows.data() + size_t(i) * size, size);
                auto [at, fresh] = first.emplace(bytes, i);
                CHECK(twin_of[i] == (fresh ? kNone : at->second), "row %u of size %u: %u", i, size, twin_of[i]);
            }
            CHECK(twin_of[n] == 12345, "beyond the end");
        }
    }
    Allocator none = {nullptr, [](void *, size_t) -> void * { return nullptr; }, [](void *, void *) {}};
    uint32_t twin;
    CHECK(find_twins("abcd", 4, 1, &twin, none, nullptr, nullptr) == BuildStatus::OutOfMemory, "no memory");
}

int main()
{
    test_store();
    test_twins_of_insert();
    test_searches_meanwhile();
    test_leaving();
    test_find_twins();
    return finish();
}
