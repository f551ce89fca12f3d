/*
 * writes.cpp: a mirror that changes: grows, gets other links, loses rows; searches beside writes.
 */
#include "parity.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace parity {

static constexpr uint32_t kNodes = kSlow ? 1200 : 3000;
static constexpr uint32_t kEf = kSlow ? 16 : 24;

static void test_growth()
{
    for (uint8_t width : {2, 3, 4}) {
        TEST(("a mirror that grows is the mirror made at once, cells of " + std::to_string(width)).c_str());
        Data rows = random_data(kNodes, 20, 1, 0), queries = random_data(40, 20, 1, 1);
        Options options;
        options.m = 5;
        options.width = width;
        options.metric = width == 3 ? Metric::Cosine : Metric::L2;
        options.storage = width == 2 ? Storage::Int8 : Storage::Float32;
        Grower grower(rows, options);
        std::vector<Index> steps;
        for (uint32_t n : {kNodes / 2, kNodes / 2 + 1, kNodes * 3 / 4, kNodes})
            steps.push_back(grower.grow(n));
        uint32_t upper = steps.back().upper;
        for (const Subject &subject : all()) {
            Mirror grown(subject, steps[0], kNodes + 100, upper + 100);
            for (size_t i = 0;; i++) {
                Mirror whole(subject, steps[i]);
                for (SearchForm form : {SearchForm::Graph, SearchForm::Exact}) {
                    Search search = {form, 10, kEf, nullptr};
                    std::vector<Hits> a = parity::search(grown, subject.stream, search, queries);
                    std::vector<Hits> b = parity::search(whole, subject.stream, search, queries);
                    for (uint32_t q = 0; q < queries.n; q++)
                        CHECK(same(a[q], b[q]), "%s: step %zu, query %u", subject.name.c_str(), i, q);
                }
                if (i + 1 == steps.size())
                    break;
                grown.write(steps[i + 1], steps[i].nodes);
                /* Written, not committed: the exact answer is the old one, and no walk comes to a new node. */
                Search search = {SearchForm::Exact, 10, kEf, nullptr};
                std::vector<Hits> a = parity::search(grown, subject.stream, search, queries);
                std::vector<Hits> b = parity::search(whole, subject.stream, search, queries);
                search.form = SearchForm::Graph;
                std::vector<Hits> c = parity::search(grown, subject.stream, search, queries);
                for (uint32_t q = 0; q < queries.n; q++) {
                    CHECK(same(a[q], b[q]), "%s: before the commit, query %u", subject.name.c_str(), q);
                    for (const Hit &hit : c[q])
                        CHECK(hit.slot < steps[i].nodes, "%s: slot %u before the commit", subject.name.c_str(),
                              hit.slot);
                }
                grown.commit(steps[i + 1]);
            }
        }
    }

    TEST("rows die one page of slots at a time");
    Data rows = random_data(kNodes, 20, 2, 0), queries = random_data(10, 20, 2, 1);
    Index index = make_index(rows, Options());
    Judge judge(index);
    for (const Subject &subject : all()) {
        Index dying = index;
        Mirror mirror(subject, dying);
        for (uint32_t first = 0; first < dying.nodes; first += 500) {
            uint32_t n = std::min(500u, dying.nodes - first);
            for (uint32_t i = first; i < first + n; i++)
                dying.set_meta(i, kRowDead);
            char error[kErrorBytes];
            CHECK(subject.api->mirror_write(subject.stream, mirror.mirror, Region::Slots, first, n,
                                            dying.slots.data() + first * sizeof(SlotRecord), error) == Status::Ok,
                  "write");
            mirror.commit(dying);
            for (SearchForm form : {SearchForm::Exact, SearchForm::Graph}) {
                Search search = {form, 10, kEf, nullptr};
                std::vector<Hits> hits = parity::search(mirror, subject.stream, search, queries);
                for (uint32_t q = 0; q < queries.n; q++) {
                    Truth truth = judge.truth(queries.at(q));
                    if (form == SearchForm::Exact)
                        judge.check_exact(subject.name.c_str(), dying, search, truth, hits[q]);
                    else
                        judge.check_sound(subject.name.c_str(), dying, search, truth, hits[q]);
                }
            }
        }
    }

    TEST("mirrors do not disturb each other");
    for (const Subject &subject : all()) {
        std::vector<std::unique_ptr<Mirror>> mirrors;
        std::vector<Index> indexes;
        for (uint32_t i = 0; i < 6; i++) {
            Options options;
            options.metric = i % 2 ? Metric::L2 : Metric::InnerProduct;
            options.storage = Storage(i % 4 + 1);
            options.flat = i == 5;
            indexes.push_back(make_index(random_data(300 + 50 * i, 9, i, 0), options));
            mirrors.push_back(std::make_unique<Mirror>(subject, indexes.back()));
        }
        Data asked = random_data(5, 9, 3, 1);
        mirrors.erase(mirrors.begin() + 2);
        indexes.erase(indexes.begin() + 2);
        for (size_t i = 0; i < mirrors.size(); i++) {
            Judge own(indexes[i]);
            Search search;
            std::vector<Hits> hits = parity::search(*mirrors[i], subject.stream, search, asked);
            for (uint32_t q = 0; q < asked.n; q++)
                own.check_exact(subject.name.c_str(), indexes[i], search, own.truth(asked.at(q)), hits[q]);
        }
    }
}

static void test_large()
{
    TEST("records beyond 4 GB");
    constexpr uint32_t nodes = 1200000, some = 10;
    Data rows = random_data(some, 1000, 7, 0), queries = random_data(3, 1000, 7, 1);
    Options options;
    options.flat = true;
    Index index = make_index(rows, options);
    for (const Subject &subject : all()) {
        Mirror small(subject, index);
        MirrorShape shape = shape_of(index);
        shape.nodes = nodes;
        DeviceMirror *large = nullptr;
        char error[kErrorBytes] = "";
        if (subject.api->mirror_create(subject.device, &shape, &large, error) != Status::Ok) {
            test::note("%s: left out: %s", subject.name.c_str(), error);
            continue;
        }
        /* All slots but the last are unused, so that their vectors are never touched. */
        std::vector<SlotRecord> slots(nodes, SlotRecord{{0, 0, 0}, kRowUnused});
        memcpy(slots.data() + (nodes - some), index.slots.data(), index.slots.size());
        MirrorState state = state_of(index);
        state.nodes = nodes;
        bool good = subject.api->mirror_write(subject.stream, large, Region::Slots, 0, nodes, slots.data(), error) ==
                        Status::Ok &&
                    subject.api->mirror_write(subject.stream, large, Region::Vectors, nodes - some, some,
                                              index.vectors.data(), error) == Status::Ok &&
                    subject.api->mirror_commit(subject.stream, large, &state, error) == Status::Ok;
        CHECK(good, "%s: %s", subject.name.c_str(), error);
        Search search;
        search.k = some + 1;
        std::vector<Hits> expected = parity::search(small, subject.stream, search, queries);
        for (uint32_t q = 0; q < queries.n; q++) {
            for (Hit &hit : expected[q])
                hit.slot += nodes - some;
            Hit hits[some + 1];
            uint32_t count = 0;
            BatchQuery one = {queries.at(q), hits, &count};
            BatchParams params = {SearchForm::Exact, some + 1, 1, queries.dimensions, nullptr};
            CHECK(subject.api->search(subject.stream, large, &params, &one, 1, nullptr, nullptr, nullptr, error) ==
                          Status::Ok &&
                      same(Hits(hits, hits + std::min(count, some + 1)), expected[q]),
                  "%s: query %u: %u hits", subject.name.c_str(), q, count);
        }
        subject.api->mirror_drop(large);
    }
}

/* CHECK is for one thread: the searching threads keep their first complaint. */
struct Complaint {
    std::atomic<bool> any{false};
    std::string text;

    void say(const std::string &what)
    {
        if (!any.exchange(true))
            text = what;
    }
};

struct Beside {
    const Subject *subject;
    const Mirror *mirror;
    const std::vector<Index> *steps;
    const Data *queries;
    const std::vector<std::vector<Hits>> *exact; /* of each step and query, from a mirror at rest */
    const std::vector<Truth> *truths;            /* over all rows */
    std::atomic<size_t> begun{0}, committed{0};  /* steps */
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> searches{0};
};

static void search_beside(Beside *beside, SearchForm form, Complaint *complaint)
{
    const Subject &subject = *beside->subject;
    DeviceStream *stream;
    char error[kErrorBytes] = "";
    if (subject.api->stream_open(subject.device, &stream, error) != Status::Ok)
        return complaint->say(std::string("stream: ") + error);
    constexpr uint32_t k = 10, n = 4;
    uint32_t dimensions = beside->queries->dimensions;
    for (uint32_t round = 0; !beside->stop.load() && !complaint->any.load(); round++) {
        Hit hits[n][k];
        uint32_t counts[n];
        BatchQuery batch[n];
        for (uint32_t i = 0; i < n; i++)
            batch[i] = {beside->queries->at((round + i) % beside->queries->n), hits[i], &counts[i]};
        BatchParams params = {form, k, kEf, dimensions, nullptr};
        /* Not for walks: nothing but the state itself may tell this thread that vectors are there (ThreadSanitizer looks on). */
        size_t least = form == SearchForm::Exact ? beside->committed.load() : 0;
        Status status =
            subject.api->search(stream, beside->mirror->mirror, &params, batch, n, nullptr, nullptr, nullptr, error);
        size_t most = beside->begun.load();
        if (status != Status::Ok)
            complaint->say(std::string("status: ") + error);
        for (uint32_t i = 0; i < n; i++) {
            uint32_t q = (round + i) % beside->queries->n;
            const Truth &truth = (*beside->truths)[q];
            if (counts[i] != k)
                complaint->say("count " + std::to_string(counts[i]));
            Hits got(hits[i], hits[i] + std::min(k, counts[i]));
            for (size_t j = 0; j < got.size(); j++) {
                uint32_t slot = got[j].slot;
                if (slot >= (*beside->steps)[most].nodes)
                    complaint->say("slot " + std::to_string(slot) + " is of no state");
                else if (std::abs(got[j].key - truth.keys[slot]) > truth.tolerances[slot])
                    complaint->say("key of slot " + std::to_string(slot));
                if (j > 0 && !(got[j - 1].key < got[j].key || (got[j - 1].key == got[j].key && got[j - 1].slot < slot)))
                    complaint->say("order");
            }
            if (form != SearchForm::Exact)
                continue;
            bool known = false;
            for (size_t step = least; step <= most; step++)
                known = known || same(got, (*beside->exact)[step][q]);
            if (!known)
                complaint->say("an exact answer of no state from " + std::to_string(least) + " to " +
                               std::to_string(most));
        }
        beside->searches.fetch_add(1, std::memory_order_relaxed);
    }
    subject.api->stream_close(stream);
}

static void test_beside()
{
    Data rows = random_data(kNodes, 20, 5, 0), queries = random_data(20, 20, 5, 1);
    for (uint8_t width : {3, 4}) {
        Options options;
        options.m = width == 3 ? 5 : 8; /* records of 30 and of 64 bytes */
        options.width = width;
        Grower grower(rows, options);
        std::vector<Index> steps;
        for (uint32_t i = 0; i <= 10; i++)
            steps.push_back(grower.grow(kNodes * (i + 10) / 20));
        Judge judge(steps.back());
        std::vector<Truth> truths;
        for (uint32_t q = 0; q < queries.n; q++)
            truths.push_back(judge.truth(queries.at(q)));
        for (const Subject &subject : all()) {
            TEST((subject.name + ": searches beside writes and commits, cells of " + std::to_string(width)).c_str());
            std::vector<std::vector<Hits>> exact;
            for (const Index &step : steps) {
                Mirror still(subject, step);
                exact.push_back(parity::search(still, subject.stream, {SearchForm::Exact, 10, kEf, nullptr}, queries));
            }
            Mirror mirror(subject, steps[0], kNodes, steps.back().upper);
            Beside beside;
            beside.subject = &subject;
            beside.mirror = &mirror;
            beside.steps = &steps;
            beside.queries = &queries;
            beside.exact = &exact;
            beside.truths = &truths;
            Complaint complaints[3];
            std::vector<std::thread> threads;
            for (uint32_t i = 0; i < 3; i++)
                threads.emplace_back(search_beside, &beside, i == 0 ? SearchForm::Exact : SearchForm::Graph,
                                     &complaints[i]);
            for (size_t step = 1; step < steps.size(); step++) {
                uint64_t before = beside.searches.load();
                mirror.write(steps[step], steps[step - 1].nodes);
                beside.begun.store(step);
                mirror.commit(steps[step]);
                beside.committed.store(step);
                /* Some searches of this state, and the same links again under the eyes of others. */
                while (beside.searches.load() < before + 60 && !complaints[0].any.load())
                    mirror.write(steps[step], steps[step].nodes);
            }
            beside.stop.store(true);
            for (std::thread &thread : threads)
                thread.join();
            for (const Complaint &complaint : complaints)
                CHECK(!complaint.any.load(), "%s", complaint.text.c_str());
            test::note("%llu searches", (unsigned long long)beside.searches.load());
        }
    }
}

static void test_streams()
{
    TEST("all streams at once find the same");
    Data rows = random_data(kNodes, 20, 6, 0), queries = random_data(64, 20, 6, 1);
    Index index = make_index(rows, Options());
    for (const Subject &subject : all()) {
        Mirror mirror(subject, index);
        Search search = {SearchForm::Graph, 10, kEf, nullptr};
        std::vector<Hits> alone = parity::search(mirror, subject.stream, search, queries);
        std::vector<std::thread> threads;
        std::atomic<uint32_t> wrong{0};
        for (uint32_t t = 0; t < std::max(2u, subject.info.streams); t++)
            threads.emplace_back([&, t] {
                DeviceStream *stream;
                if (subject.api->stream_open(subject.device, &stream, nullptr) != Status::Ok) {
                    wrong++;
                    return;
                }
                for (uint32_t q = t; q < queries.n + t; q++) {
                    Hit hits[10];
                    uint32_t count = 0;
                    BatchQuery one = {queries.at(q % queries.n), hits, &count};
                    BatchParams params = {SearchForm::Graph, 10, kEf, queries.dimensions, nullptr};
                    if (subject.api->search(stream, mirror.mirror, &params, &one, 1, nullptr, nullptr, nullptr,
                                            nullptr) != Status::Ok ||
                        !same(Hits(hits, hits + count), alone[q % queries.n]))
                        wrong++;
                }
                subject.api->stream_close(stream);
            });
        for (std::thread &thread : threads)
            thread.join();
        CHECK(wrong.load() == 0, "%s: %u wrong", subject.name.c_str(), wrong.load());
    }
}

void test_writes()
{
    test_growth();
    test_large();
    test_beside();
    test_streams();
}

} // namespace parity
