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
    test_leaving();
    test_find_twins();
    return finish();
}
