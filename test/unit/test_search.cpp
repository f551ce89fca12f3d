/*
 * test_search.cpp: Stream over sound, broken and hostile graphs: every node once, in order, and the rule of the beam.
 */
#include "graph_source.h"

#include <csetjmp>
#include <functional>
#include <set>

using namespace test;

/* Nodes on a line or with given keys; lists are whatever a test puts in. */
struct ToySource {
    std::vector<float> node_keys;
    std::vector<std::vector<uint32_t>> lists;
    uint32_t visible = 0;
    uint32_t entry = 0;
    int level = 0;
    uint32_t width = 16;
    uint64_t interrupts = 0, computed = 0, jump_at = 0;
    std::vector<uint32_t> seen;
    std::function<void(ToySource &)> on_interrupt;
    jmp_buf *jump = nullptr;

    explicit ToySource(uint32_t n) : node_keys(n), lists(n), visible(n), seen(n) {}
    uint32_t count() { return visible; }
    uint32_t max_links() { return width; }
    uint32_t links(uint32_t slot, uint32_t *out)
    {
        CHECK(slot < lists.size(), "asked for the links of %u", slot);
        uint32_t n = 0;
        for (uint32_t id : lists[slot])
            if (n < width)
                out[n++] = id;
        return n;
    }
    int entry_level() { return level; }
    uint32_t entry_handle() { return entry; }
    /* Upper layers: garbage of every kind, the same on all levels. A handle is a number modulo 7 * n. */
    uint32_t upper_links(uint32_t handle, uint32_t *out)
    {
        Random random(handle);
        uint32_t n = random.below(width + 1);
        for (uint32_t i = 0; i < n; i++)
            out[i] = random.below(3) ? random.below(7 * uint32_t(lists.size()) + 1) : uint32_t(random.next());
        return n;
    }
    uint32_t upper_slot(uint32_t handle)
    {
        uint32_t n = uint32_t(lists.size());
        return handle < 5 * n ? handle % n : handle < 6 * n ? kNone : handle;
    }
    uint32_t upper_down(int, uint32_t handle) { return handle % 5 == 0 ? kNone : handle + 1; }
    void keys(const uint32_t *slots, uint32_t n, float *out)
    {
        for (uint32_t i = 0; i < n; i++) {
            CHECK(slots[i] < node_keys.size(), "key of slot %u", slots[i]);
            if (slots[i] >= node_keys.size())
                abort();
            seen[slots[i]]++;
            out[i] = node_keys[slots[i]];
        }
        computed += n;
    }
    void interrupt()
    {
        interrupts++;
        if (on_interrupt)
            on_interrupt(*this);
        if (jump && interrupts == jump_at)
            longjmp(*jump, 1);
    }
};

static ToySource random_toy(Random &random, uint32_t n, uint32_t degree, bool garbage)
{
    ToySource source(n);
    for (uint32_t i = 0; i < n; i++) {
        source.node_keys[i] = float(random.below(n / 2 + 1)); /* ties */
        for (uint32_t j = 0; j < degree; j++) {
            uint32_t id = random.below(n);
            if (garbage && random.below(3) == 0)
                id = random.below(2) ? uint32_t(random.next()) : random.below(2) ? kNone : i;
            source.lists[i].push_back(id);
        }
    }
    return source;
}

/* Takes everything out: each node below count() once, its own key, in order unless flagged as late. */
static void drain(ToySource &source, uint32_t ef, uint64_t sweep_after, const char *what)
{
    Arena arena;
    Stream<ToySource> stream;
    stream.init(&source, arena.allocator(), ef, sweep_after);
    std::vector<bool> out(source.node_keys.size());
    uint32_t slot, n = 0;
    float key, highest = -INFINITY;
    while (stream.next(&slot, &key)) {
        CHECK(slot < source.node_keys.size() && !out[slot], "%s: slot %u again", what, slot);
        if (slot >= out.size() || out[slot])
            return;
        out[slot] = true;
        n++;
        CHECK(key == source.node_keys[slot], "%s: key %g of slot %u", what, key, slot);
        CHECK(stream.late() == (key < highest), "%s: late flag at %g after %g", what, key, highest);
        highest = std::max(highest, key);
        CHECK(stream.visited(slot), "%s: visited", what);
    }
    for (uint32_t i = 0; i < source.visible; i++)
        CHECK(out[i], "%s: slot %u of %u is missing (ef %u)", what, i, source.visible, ef);
    for (uint32_t i = 0; i < source.node_keys.size(); i++)
        CHECK(source.seen[i] <= 1, "%s: key of %u computed %u times", what, i, source.seen[i]);
    CHECK(stream.keys_computed() == source.computed, "%s: counter", what);
    CHECK(stream.emitted() == n, "%s: emitted", what);
    CHECK(!stream.next(&slot, &key), "%s: the end stays the end", what);
}

static void test_drain()
{
    Random random(1);
    TEST("tiny graphs");
    for (uint32_t n : {0u, 1u, 2u, 3u, 5u}) {
        for (uint32_t ef : {0u, 1u, 2u, 10u}) {
            ToySource source = random_toy(random, n, 4, false);
            drain(source, ef, UINT64_MAX, "linked");
            ToySource alone(n);
            drain(alone, ef, UINT64_MAX, "no links");
            ToySource lost = random_toy(random, n, 4, false);
            lost.entry = kNone;
            drain(lost, ef, UINT64_MAX, "no entry");
            ToySource narrow(n);
            narrow.width = 0;
            drain(narrow, ef, UINT64_MAX, "no room for links");
        }
    }

    TEST("random graphs, all nodes once");
    for (int round = 0; round < 300; round++) {
        uint32_t n = 1 + random.below(600), ef = 1 + random.below(80);
        ToySource source = random_toy(random, n, random.below(12), false);
        drain(source, ef, random.below(2) ? UINT64_MAX : random.below(n + 1), "random");
    }

    TEST("garbage neighbour ids and upper layers");
    for (int round = 0; round < 300; round++) {
        uint32_t n = 1 + random.below(600), ef = 1 + random.below(80);
        ToySource source = random_toy(random, n, random.below(24), true);
        source.level = int(random.below(40));
        source.entry = random.below(4) ? random.below(6 * n) : uint32_t(random.next());
        drain(source, ef, random.below(2) ? UINT64_MAX : random.below(n + 1), "garbage");
    }

    TEST("a disconnected graph is swept, a connected one is not");
    {
        ToySource source(1000);
        for (uint32_t i = 0; i < 1000; i++) {
            source.node_keys[i] = float((i * 7919) % 1000);
            source.lists[i] = {i / 100 * 100 + (i + 1) % 100}; /* ten rings */
        }
        source.entry = 500;
        Arena arena;
        Stream<ToySource> stream;
        stream.init(&source, arena.allocator(), 150, UINT64_MAX);
        uint32_t slot = kNone;
        float key = 0;
        CHECK(stream.next(&slot, &key) && key == 0 && !stream.late(), "the nearest of another ring comes first: %g",
              key);
        CHECK(stream.swept(), "swept");
        ToySource ring(1000);
        for (uint32_t i = 0; i < 1000; i++) {
            ring.node_keys[i] = float(i);
            ring.lists[i] = {(i + 1) % 1000, (i + 2) % 1000};
        }
        drain(ring, 10, UINT64_MAX, "ring");
        Stream<ToySource> other;
        other.init(&ring, arena.allocator(), 10, UINT64_MAX);
        for (uint32_t i = 0; i < 1000; i++)
            CHECK(other.next(&slot, &key) && slot == i && !other.late(), "ring order");
        CHECK(!other.swept() && !other.next(&slot, &key), "no sweep");
    }

    TEST("sweep_after bounds the walk");
    {
        ToySource source = random_toy(random, 5000, 8, false);
        Arena arena;
        Stream<ToySource> stream;
        stream.init(&source, arena.allocator(), 50, 1000);
        uint32_t slot = kNone;
        float key = 0;
        for (int i = 0; i < 200 && !stream.swept(); i++)
            CHECK(stream.next(&slot, &key), "next");
        CHECK(stream.swept() && stream.expansions() < 1000, "%" PRIu64 " expansions", stream.expansions());
        drain(source = random_toy(random, 5000, 8, false), 50, 1000, "swept");
    }
}

static void test_views()
{
    Random random(2);
    TEST("a view that shrinks or grows in the middle");
    for (int round = 0; round < 200; round++) {
        uint32_t n = 20 + random.below(400), from = 1 + random.below(n), to = 1 + random.below(n);
        ToySource source = random_toy(random, n, random.below(10), true);
        source.visible = from;
        uint32_t at = random.below(20);
        source.on_interrupt = [=](ToySource &s) {
            if (s.interrupts >= at)
                s.visible = to;
        };
        source.entry = random.below(n);
        Arena arena;
        Stream<ToySource> stream;
        stream.init(&source, arena.allocator(), 1 + random.below(30), UINT64_MAX);
        std::vector<bool> out(n);
        uint32_t slot = kNone;
        float key = 0;
        while (stream.next(&slot, &key)) {
            CHECK(slot < std::max(from, to) && !out[slot], "slot %u twice or beyond", slot);
            out[slot] = true;
        }
        for (uint32_t i = 0; i < source.visible; i++)
            CHECK(out[i], "slot %u of %u (%u before) is missing", i, source.visible, from);
    }

    TEST("a jump out of the source leaves nothing behind");
    for (uint64_t at = 1; at < 40; at++) {
        Arena arena;
        ToySource source = random_toy(random, 300, 8, false);
        jmp_buf jump;
        source.jump = &jump;
        source.jump_at = at;
        if (setjmp(jump) == 0) {
            Stream<ToySource> stream;
            stream.init(&source, arena.allocator(), 20, UINT64_MAX);
            uint32_t slot = kNone;
            float key = 0;
            while (stream.next(&slot, &key)) {
            }
            CHECK(false, "no jump");
        }
    }
}

/* Algorithm 2 of the paper as it is written, from the same entry point on layer 0. */
static std::vector<Packed> beam(ToySource &source, uint32_t ef)
{
    std::vector<bool> visited(source.node_keys.size());
    std::set<Packed> candidates, found;
    auto add = [&](uint32_t slot) {
        visited[slot] = true;
        Packed entry = pack(source.node_keys[slot], slot);
        if (found.size() < ef || entry < *found.rbegin()) {
            candidates.insert(entry);
            found.insert(entry);
            if (found.size() > ef)
                found.erase(std::prev(found.end()));
        }
    };
    add(source.entry);
    while (!candidates.empty()) {
        Packed nearest = *candidates.begin();
        candidates.erase(candidates.begin());
        if (nearest > *found.rbegin())
            break;
        for (uint32_t id : source.lists[slot_of(nearest)])
            if (!visited[id])
                add(id);
    }
    return {found.begin(), found.end()};
}

static void test_rule()
{
    Random random(3);
    TEST("up to ef / 2 rows it is exactly a beam of width ef");
    for (int round = 0; round < 500; round++) {
        uint32_t n = 50 + random.below(2000), ef = 1 + random.below(64);
        ToySource source = random_toy(random, n, 3 + random.below(8), false);
        if (round % 2) /* a graph with a direction, not only a random one */
            for (uint32_t i = 0; i < n; i++) {
                source.node_keys[i] = float(i / 2);
                for (uint32_t &id : source.lists[i])
                    id = uint32_t(std::min<int64_t>(n - 1, std::max<int64_t>(0, int64_t(i) + random.below(41) - 22)));
            }
        source.entry = random.below(n);
        std::vector<Packed> right = beam(source, ef);
        if (right.size() < ef)
            continue; /* the component is smaller: a sweep */
        Arena arena;
        Stream<ToySource> stream;
        stream.init(&source, arena.allocator(), ef, UINT64_MAX);
        for (uint32_t j = 0; j <= (ef - 1) / 2; j++) {
            uint32_t slot = kNone;
            float key = 0;
            CHECK(stream.next(&slot, &key), "next");
            if (stream.swept())
                break;
            CHECK(pack(key, slot) == right[j], "ef %u, row %u of %zu: %g, beam %g", ef, j, right.size(), key,
                  key_of(right[j]));
        }
    }

    TEST("order of packed keys");
    float values[] = {-INFINITY, -1e30f, -1, -1e-40f, 0, 1e-40f, 1, 1e30f, INFINITY, NAN};
    for (size_t i = 0; i + 1 < std::size(values); i++)
        CHECK(pack(values[i], kNone) < pack(values[i + 1], 0), "%g before %g", values[i], values[i + 1]);
    CHECK(pack(-0.0f, 7) == pack(0.0f, 7) && pack(-NAN, 1) == pack(NAN, 1), "zeros, NaN");
    for (float x : {-5.5f, -1e-40f, 0.0f, 3.25f, 1e38f})
        CHECK(key_of(pack(x, 9)) == x && slot_of(pack(x, 9)) == 9, "%g there and back", x);
}

static void test_visited()
{
    TEST("VisitedSet grows and keeps");
    Random random(4);
    Arena arena;
    Allocator memory = arena.allocator();
    VisitedSet set;
    set.init(0, memory);
    std::set<uint32_t> right;
    for (int i = 0; i < 20000; i++) {
        uint32_t slot = random.below(2) ? random.below(30000) : uint32_t(random.next()) % kNone;
        CHECK(set.contains(slot) == (right.count(slot) > 0), "contains %u", slot);
        CHECK(set.insert(slot, memory) == right.insert(slot).second, "insert %u", slot);
    }
    CHECK(set.size() == right.size(), "size");
    set.release(memory);
}

int main()
{
    test_visited();
    test_drain();
    test_views();
    test_rule();
    return finish();
}
