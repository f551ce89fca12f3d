/*
 * forms.cpp: exact or graph: the model that decides, and what an engine makes of it.
 */
#include "client.h"

#include "engine/cost_model.h"

#include <map>
#include <thread>

using namespace engine_test;

namespace {

/* A device that needs so many ns, and counts. */
struct Machine {
    std::function<double(SearchForm form, uint32_t width, uint32_t batch)> ns;
    uint32_t runs = 0, longest_batch = 0;
    double spent = 0;

    FormModel model(uint32_t nodes, uint32_t largest = 10000)
    {
        return FormModel::measured(nodes, largest, [&](SearchForm form, uint32_t width, uint32_t batch) {
            double took = ns(form, width, batch);
            runs++;
            longest_batch = std::max(longest_batch, batch);
            spent += took;
            return uint64_t(took);
        });
    }
};

/* About a large GPU: walks run side by side, a scan costs its bytes once for all. */
double gpu(SearchForm form, uint32_t width, uint32_t batch, double rows)
{
    if (form == SearchForm::Graph)
        return (30000 + 400.0 * width) * (1 + batch / 150.0);
    if (width > 256)
        return batch * (20000 + rows * 0.13);
    return 20000 + rows * 0.13 + batch * rows * 0.0004 + 50.0 * width;
}

/* A core: everything one after the other. */
double core(SearchForm form, uint32_t width, uint32_t batch, double rows)
{
    return form == SearchForm::Graph ? batch * width * 2500.0 : batch * rows * 12;
}

void test_model()
{
    TEST("few rows are scanned, many are walked, and a wider walk gives way to a scan");
    for (auto machine : {gpu, core}) {
        std::map<double, uint32_t> from;
        for (double rows : {5e3, 2e4, 1e5, 3e5, 1e6, 1e7, 1e8}) {
            Machine one = {[&](SearchForm form, uint32_t width, uint32_t batch) { return machine(form, width, batch, rows); }};
            FormModel model = one.model(uint32_t(rows), machine == core ? 64 : 10000);
            from[rows] = model.exact_from(22);
            CHECK(one.spent <= 2.5 * FormModel::kBudgetNs, "%g rows: %g ms in %u runs", rows, one.spent / 1e6, one.runs);
            CHECK(model.nodes() == rows, "nodes");
            uint32_t ef = model.exact_from(22);
            if (ef > 22)
                CHECK(model.choose(ef, 22) == SearchForm::Exact && model.choose(ef - 1, 22) == SearchForm::Graph, "from %u on", ef);
            if (ef == 0)
                CHECK(model.choose(FormModel::kMostEf, 22) == SearchForm::Graph, "never");
        }
        CHECK(from[5e3] >= 22 && from[5e3] <= 40, "5,000 rows: from %u on", from[5e3]);
        CHECK(from[1e8] == 0, "100,000,000 rows: from %u on", from[1e8]);
        uint32_t last = 0;
        for (auto [rows, ef] : from) {
            CHECK(ef == 0 || (ef >= last && last != UINT32_MAX), "%g rows: from %u on, fewer from %u", rows, ef, last);
            last = ef == 0 ? UINT32_MAX : ef;
        }
    }

    TEST("the geometric mean of the reference batches decides");
    {
        /* Exact: twice the time for one query and for 16, half of it for 64 and 256. */
        double share = 0.99;
        Machine even = {[&](SearchForm form, uint32_t, uint32_t batch) {
            return form == SearchForm::Graph ? 100000.0 : share * (batch <= 16 ? 200000 : 50000);
        }};
        CHECK(even.model(100000).choose(100, 22) == SearchForm::Exact, "cheaper");
        share = 1.1;
        CHECK(even.model(100000).choose(100, 22) == SearchForm::Graph, "dearer");
    }

    TEST("another kernel above some k");
    {
        Machine steps = {[&](SearchForm form, uint32_t width, uint32_t batch) { return gpu(form, width, batch, 3e5); }};
        FormModel model = steps.model(300000);
        CHECK(model.choose(300, 22) == SearchForm::Exact && model.choose(400, 250) == SearchForm::Exact, "few");
        CHECK(model.choose(300, 300) == SearchForm::Graph, "many");
    }

    TEST("times are those that were measured, the least of several");
    {
        uint32_t noise = 0;
        Machine noisy = {[&](SearchForm form, uint32_t width, uint32_t batch) {
            return gpu(form, width, batch, 1e6) * (noise++ % 3 == 0 ? 1 : 1.5);
        }};
        FormModel model = noisy.model(1000000);
        float exact[kReferenceBatches], graph[kReferenceBatches];
        model.times(200, 22, exact, graph);
        for (uint32_t b = 0; b < kReferenceBatches; b++) {
            double x = gpu(SearchForm::Exact, 32, kFormBatches[b], 1e6) / 1000, g = gpu(SearchForm::Graph, 200, kFormBatches[b], 1e6) / 1000;
            CHECK(exact[b] >= x * 0.99 && exact[b] <= x * 1.51 && graph[b] >= g * 0.99 && graph[b] <= g * 1.51,
                  "batch %u: %g, not %g; %g, not %g", kFormBatches[b], double(exact[b]), x, double(graph[b]), g);
        }
    }

    TEST("a batch that a call does not take, or that would take too long, is not run");
    {
        Machine small = {[&](SearchForm form, uint32_t width, uint32_t batch) { return gpu(form, width, batch, 1e5); }};
        small.model(100000, 16);
        CHECK(small.longest_batch == 16, "%u", small.longest_batch);
        Machine slow = {[&](SearchForm form, uint32_t width, uint32_t batch) { return core(form, width, batch, 1e6); }};
        FormModel model = slow.model(1000000);
        CHECK(slow.longest_batch < 64 && model.choose(40, 22) == SearchForm::Graph, "%u", slow.longest_batch);
    }

    TEST("a device that is so slow, or so busy, that hardly anything can be run");
    for (double ms : {3, 8, 16, 40, 500}) {
        Machine busy = {[&](SearchForm, uint32_t, uint32_t) { return ms * 1e6; }};
        FormModel model = busy.model(1000000);
        float exact[kReferenceBatches], graph[kReferenceBatches];
        model.times(200, 22, exact, graph);
        bool known = true;
        for (uint32_t b = 0; b < kReferenceBatches; b++)
            known = known && exact[b] > 0 && graph[b] > 0;
        CHECK(known && model.choose(40, 22) == SearchForm::Graph, "%g ms: a time is missing", ms);
        CHECK(busy.spent <= 2.5 * FormModel::kBudgetNs || busy.runs <= 2, "%g ms: %u runs", ms, busy.runs);
    }

    TEST("a run that fails leaves the graph, and is tried again");
    for (uint32_t good : {0u, 1u, 5u, 20u}) {
        uint32_t left = good;
        Machine broken = {[&](SearchForm, uint32_t, uint32_t) { return left > 0 ? left--, 1000.0 : 0.0; }};
        FormModel model = broken.model(10000);
        CHECK(model.choose(10000, 1) == SearchForm::Graph && model.outgrown(10000) && broken.runs <= good + 2, "after %u", good);
    }

    TEST("it holds until there are half or twice as many nodes");
    {
        Machine any = {[&](SearchForm form, uint32_t width, uint32_t batch) { return gpu(form, width, batch, 1e5); }};
        FormModel model = any.model(100000);
        CHECK(!model.outgrown(50000) && !model.outgrown(200000) && model.outgrown(49999) && model.outgrown(200002), "bounds");
        CHECK(FormModel::always(SearchForm::Exact).exact_from(22) == 22 && FormModel::always(SearchForm::Graph).exact_from(22) == 0, "fixed");
    }
}

bool same_hits(const std::vector<Hit> &a, const std::vector<Hit> &b)
{
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const Hit &x, const Hit &y) {
        return x.slot == y.slot && x.key == y.key;
    });
}

MirrorEntry entry_of(Client &client, const TestIndex &index, uint32_t ef, uint32_t k)
{
    for (const MirrorEntry &entry : client.mirrors(ef, k))
        if (entry.index == index.key)
            return entry;
    return {};
}

void test_engine()
{
    EngineProcess engine("forms");
    Client client(engine);

    TEST("no graph, or few nodes: exact, without measuring");
    {
        TestIndex flat = make_index(1, IndexKind::Flat, 16, 9000), tiny = make_index(2, IndexKind::Hnsw, 16, FormModel::kTinyNodes);
        for (const TestIndex *index : {&flat, &tiny}) {
            CHECK(client.load_index(*index) == Status::Ok, "load");
            MirrorEntry entry = entry_of(client, *index, 40, 22);
            CHECK(entry.form == SearchForm::Exact && entry.exact_from == 22 && entry.exact_us[0] == 0 && entry.graph_us[0] == 0, "entry");
            CHECK(client.search(*index, index->row(7), 10, SearchForm::Auto, 40) == Status::Ok, "search");
            CHECK(client.response.search.form == SearchForm::Exact && plausible(*index, index->row(7), client.hits, 10, index->nodes()),
                  "exact");
        }
        CHECK(client.search(tiny, tiny.row(7), 10, SearchForm::Graph, 40) == Status::Ok && client.response.search.form == SearchForm::Graph,
              "the graph when it is asked for");
        CHECK(client.search(tiny, tiny.row(7), 10, SearchForm::Auto, 9) == Status::BadRequest, "ef below k");
    }

    TestIndex index = make_index(3, IndexKind::Hnsw, 32, kSlow ? 5000 : 30000);
    CHECK(client.load_index(index) == Status::Ok, "load");
    const uint32_t efs[] = {10, 40, 100, 300, 1000, 5000};

    TEST("what the list says is what is done, whoever else asks");
    {
        MirrorEntry entry = entry_of(client, index, 40, 10);
        CHECK(entry.exact_us[0] > 0 && entry.graph_us[0] > 0, "measured");
        std::map<uint32_t, SearchForm> forms;
        for (uint32_t ef : efs) {
            forms[ef] = entry_of(client, index, ef, 10).form;
            CHECK((forms[ef] == SearchForm::Exact) == (entry.exact_from != 0 && ef >= entry.exact_from), "ef %u, exact from %u", ef,
                  entry.exact_from);
        }
        std::vector<std::thread> threads;
        std::atomic<uint32_t> wrong{0};
        for (uint32_t t = 0; t < 8; t++)
            threads.emplace_back([&, t] {
                Client other(engine);
                for (uint32_t i = 0; i < 6; i++) {
                    const float *query = index.row(i * 301 + t % 2);
                    uint32_t ef = efs[i];
                    if (other.search(index, query, 10, SearchForm::Auto, ef) != Status::Ok || other.response.search.form != forms[ef]) {
                        wrong++;
                        continue;
                    }
                    std::vector<Hit> hits = other.hits;
                    if (other.search(index, query, 10, forms[ef], ef) != Status::Ok || !same_hits(hits, other.hits))
                        wrong++;
                    if (other.search(index, query, 10) != Status::Ok || other.response.search.form != SearchForm::Exact ||
                        !plausible(index, query, other.hits, 10, index.nodes()))
                        wrong++;
                }
            });
        for (std::thread &thread : threads)
            thread.join();
        CHECK(wrong == 0, "%u wrong", wrong.load());
    }

    TEST("a mirror that comes back is searched as before; one that doubled is measured again");
    {
        MirrorEntry before = entry_of(client, index, 40, 10);
        CHECK(client.evict(index.key) == Status::Ok && client.load_index(index) == Status::Ok, "reload");
        MirrorEntry after = entry_of(client, index, 40, 10);
        CHECK(memcmp(before.exact_us, after.exact_us, sizeof before.exact_us) == 0 &&
                  memcmp(before.graph_us, after.graph_us, sizeof before.graph_us) == 0 && before.exact_from == after.exact_from,
              "the same figures");
        test::Random random(99);
        add_rows(&index, 100, &random);
        CHECK(client.load_index(index) == Status::Ok, "a little more");
        after = entry_of(client, index, 40, 10);
        CHECK(memcmp(before.exact_us, after.exact_us, sizeof before.exact_us) == 0, "the same figures still");
        add_rows(&index, 2 * index.nodes(), &random);
        CHECK(client.load_index(index) == Status::Ok, "three times as much");
        after = entry_of(client, index, 40, 10);
        CHECK(after.exact_us[0] > 0 && memcmp(before.exact_us, after.exact_us, sizeof before.exact_us) != 0, "others");
    }
}

} // namespace

int main()
{
    test_model();
    test_engine();
    return test::finish();
}
