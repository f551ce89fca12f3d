/*
 * support.cpp: see parity.h.
 */
#include "parity.h"

#include "core/distance.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

namespace parity {

std::vector<Subject> &all()
{
    static std::vector<Subject> subjects;
    return subjects;
}

const char *metric_name(Metric metric)
{
    return metric == Metric::L2 ? "L2" : metric == Metric::Cosine ? "cosine" : "inner product";
}

const char *storage_name(Storage storage)
{
    static const char *const names[] = {"", "float32", "float16", "bfloat16", "int8"};
    return names[int(storage)];
}

Subject open_subject(const char *name, const DeviceApi *api, uint32_t number, bool reference)
{
    Subject subject = {name, api, nullptr, {}, nullptr, reference};
    char error[kErrorBytes] = "";
    if (api->open(number, &subject.device, &subject.info, error) != Status::Ok ||
        api->stream_open(subject.device, &subject.stream, error) != Status::Ok) {
        fprintf(stderr, "%s: cannot open device %u: %s\n", name, number, error);
        exit(2);
    }
    return subject;
}

void close_subject(Subject *subject)
{
    subject->api->stream_close(subject->stream);
    subject->api->close(subject->device);
}

MirrorShape shape_of(const Index &index)
{
    return {index.kind, index.metric, index.storage, index.width, index.dimensions, index.m, index.nodes, index.upper};
}

MirrorState state_of(const Index &index)
{
    return {index.nodes, index.upper, index.entry_handle, index.entry_level, index.max_norm, 0};
}

/* ---- mirror ---- */

Mirror::Mirror(const Subject &on, const Index &index, uint32_t nodes, uint32_t upper) : subject(on), stream(on.stream)
{
    MirrorShape shape = shape_of(index);
    shape.nodes = std::max(shape.nodes, nodes);
    shape.upper = std::max(shape.upper, upper);
    char error[kErrorBytes] = "";
    if (on.api->mirror_create(on.device, &shape, &mirror, error) != Status::Ok) {
        fprintf(stderr, "%s: cannot create a mirror: %s\n", on.name.c_str(), error);
        exit(2);
    }
    write(index, 0);
    commit(index);
}

Mirror::~Mirror()
{
    subject.api->mirror_drop(mirror);
}

void Mirror::write(const Index &index, uint32_t first)
{
    char error[kErrorBytes] = "";
    auto put = [&](Region region, uint32_t from, uint32_t to, const std::vector<uint8_t> &records) {
        /* In two parts, from memory that is not aligned: staging memory is not either. */
        uint32_t bytes = index.record_bytes(region), middle = from + (to - from) / 3;
        for (uint32_t part = 0; part < 2; part++) {
            uint32_t start = part ? middle : from, count = (part ? to : middle) - start;
            std::vector<uint8_t> copy(size_t(count) * bytes + 1);
            if (count > 0)
                memcpy(copy.data() + 1, records.data() + size_t(start) * bytes, size_t(count) * bytes);
            Status status = subject.api->mirror_write(stream, mirror, region, start, count, copy.data() + 1, error);
            CHECK(status == Status::Ok, "%s: write: %d %s", subject.name.c_str(), int(status), error);
        }
    };
    put(Region::Vectors, first, index.nodes, index.vectors);
    put(Region::Slots, 0, index.nodes, index.slots);
    if (index.kind != IndexKind::Flat) {
        put(Region::Links, 0, index.nodes, index.links);
        put(Region::Upper, 0, index.upper, index.upper_records);
    }
}

void Mirror::commit(const Index &index)
{
    MirrorState state = state_of(index);
    char error[kErrorBytes] = "";
    Status status = subject.api->mirror_commit(stream, mirror, &state, error);
    CHECK(status == Status::Ok, "%s: commit: %d %s", subject.name.c_str(), int(status), error);
}

/* ---- search ---- */

namespace {

struct Finish {
    const std::vector<uint32_t> *counts;
    uint32_t first, k;
    std::vector<uint32_t> times;
    bool early = false;
};

void finished(void *context, uint32_t query)
{
    Finish *finish = static_cast<Finish *>(context);
    if (query >= finish->times.size()) {
        finish->early = true;
        return;
    }
    finish->times[query]++;
    if ((*finish->counts)[finish->first + query] > finish->k)
        finish->early = true; /* not set yet */
}

} // namespace

std::vector<Hits> search(const Mirror &mirror, DeviceStream *stream, const Search &search, const Data &queries,
                         uint32_t batch)
{
    const Subject &subject = mirror.subject;
    constexpr uint32_t guard = 2;
    const Hit poison = {0xdeadbeef, -1234.5f};
    uint32_t k = search.k, stride = k + guard;
    if (batch == 0)
        batch = subject.info.max_batch;
    std::vector<Hit> hits(size_t(queries.n) * stride, poison);
    std::vector<uint32_t> counts(queries.n, UINT32_MAX);
    BatchParams params = {search.form, k, search.ef, queries.dimensions,
                          search.filter ? search.filter->data() : nullptr};
    for (uint32_t first = 0; first < queries.n; first += batch) {
        uint32_t n = std::min(batch, queries.n - first);
        std::vector<BatchQuery> asked(n);
        for (uint32_t i = 0; i < n; i++)
            asked[i] = {queries.at(first + i), hits.data() + size_t(first + i) * stride, &counts[first + i]};
        Finish finish = {&counts, first, k, std::vector<uint32_t>(n)};
        BatchTimes times = {~uint64_t(0), ~uint64_t(0)};
        char error[kErrorBytes] = "";
        Status status =
            subject.api->search(stream, mirror.mirror, &params, asked.data(), n, finished, &finish, &times, error);
        CHECK(status == Status::Ok, "%s: search: %d %s", subject.name.c_str(), int(status), error);
        for (uint32_t i = 0; i < n; i++)
            CHECK(finish.times[i] == 1, "%s: query %u of %u finished %u times", subject.name.c_str(), i, n,
                  finish.times[i]);
        CHECK(!finish.early, "%s: finished without a count", subject.name.c_str());
        CHECK(times.copy_ns < 1000000000000 && times.kernel_ns < 1000000000000, "%s: times", subject.name.c_str());
    }
    std::vector<Hits> out(queries.n);
    for (uint32_t q = 0; q < queries.n; q++) {
        const Hit *of = hits.data() + size_t(q) * stride;
        uint32_t count = counts[q];
        CHECK(count <= k, "%s: %u hits of %u", subject.name.c_str(), count, k);
        count = std::min(count, k);
        for (uint32_t i = k; i < stride; i++)
            CHECK(of[i].slot == poison.slot && of[i].key == poison.key, "%s: wrote beyond %u hits",
                  subject.name.c_str(), k);
        out[q].assign(of, of + count);
    }
    return out;
}

Filter random_filter(uint32_t n, double share, uint64_t seed)
{
    Filter filter(n / 64 + 1, ~uint64_t(0)); /* bits beyond the nodes are set: nobody may care */
    test::Random random(seed);
    for (uint32_t i = 0; i < n; i++)
        if (random.uniform() >= share)
            filter[i / 64] &= ~(uint64_t(1) << (i % 64));
    return filter;
}

bool same(const Hits &a, const Hits &b)
{
    return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](const Hit &x, const Hit &y) {
               return x.slot == y.slot && memcmp(&x.key, &y.key, sizeof x.key) == 0;
           });
}

/* ---- truth ---- */

Judge::Judge(const Index &index) : metric_(index.metric), storage_(index.storage)
{
    rows_.n = index.nodes;
    rows_.dimensions = index.dimensions;
    rows_.floats.resize(size_t(index.nodes) * index.dimensions);
    size_t bytes = index.record_bytes(Region::Vectors);
    for (uint32_t i = 0; i < index.nodes; i++)
        decode_row(index.storage, index.vectors.data() + i * bytes, index.dimensions, rows_.at(i));
}

Truth Judge::truth(const float *query) const
{
    uint32_t d = rows_.dimensions;
    /* An eighth of d roundings in a row at most: every kernel sums in at least eight lanes, and errors partly cancel. */
    double unit = (4 + d / 8) * std::ldexp(1.0, -24);
    Truth truth;
    truth.keys.resize(rows_.n);
    truth.tolerances.resize(rows_.n);
    for (uint32_t i = 0; i < rows_.n; i++) {
        const float *row = rows_.at(i);
        double l2 = 0, dot = 0, size = 0, norm_q = 0, norm_r = 0, scaled = 0;
        for (uint32_t j = 0; j < d; j++) {
            double q = query[j], r = row[j], difference = q - r;
            l2 += difference * difference;
            dot += q * r;
            size += std::fabs(q * r);
            norm_q += q * q;
            norm_r += r * r;
            scaled += std::fabs(difference * r);
        }
        switch (metric_) {
        case Metric::L2:
            truth.keys[i] = l2;
            /* int8: scale * value is rounded before it is subtracted, in the kernel and in the decoded row. */
            truth.tolerances[i] = unit * l2 + (storage_ == Storage::Int8 ? 4 * std::ldexp(scaled, -24) : 0) + FLT_MIN;
            break;
        case Metric::InnerProduct:
            truth.keys[i] = -dot;
            truth.tolerances[i] = unit * size + FLT_MIN;
            break;
        case Metric::Cosine: {
            double norms = std::sqrt(norm_q) * std::sqrt(norm_r);
            truth.keys[i] = norms > 0 ? 1 - dot / norms : 2;
            truth.tolerances[i] = 2 * unit;
            break;
        }
        }
    }
    return truth;
}

static uint32_t count_returnable(const Index &index, const Filter *filter)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < index.nodes; i++)
        n += index.returnable(i, filter);
    return n;
}

/* The k-th lowest key of what may be returned, with its tolerance on top; -infinity if k is 0. */
static double kth_key(const Index &index, const Filter *filter, const Truth &truth, uint32_t k)
{
    std::vector<double> keys;
    for (uint32_t i = 0; i < index.nodes; i++)
        if (index.returnable(i, filter))
            keys.push_back(truth.keys[i]);
    k = std::min<uint32_t>(k, uint32_t(keys.size()));
    if (k == 0)
        return -HUGE_VAL;
    std::nth_element(keys.begin(), keys.begin() + (k - 1), keys.end());
    return keys[k - 1];
}

void Judge::check_sound(const char *what, const Index &index, const Search &search, const Truth &truth,
                        const Hits &hits) const
{
    uint32_t expected = std::min(search.k, count_returnable(index, search.filter));
    CHECK(hits.size() == expected, "%s: %zu hits, not %u", what, hits.size(), expected);
    std::vector<uint8_t> seen(index.nodes);
    for (size_t i = 0; i < hits.size(); i++) {
        const Hit &hit = hits[i];
        CHECK(hit.slot < index.nodes, "%s: slot %u of %u", what, hit.slot, index.nodes);
        if (hit.slot >= index.nodes)
            return;
        CHECK(index.returnable(hit.slot, search.filter), "%s: slot %u must not be returned", what, hit.slot);
        CHECK(!seen[hit.slot]++, "%s: slot %u twice", what, hit.slot);
        CHECK(std::fabs(hit.key - truth.keys[hit.slot]) <= truth.tolerances[hit.slot],
              "%s: key %.9g of slot %u is %.9g, tolerance %.3g", what, hit.key, hit.slot, truth.keys[hit.slot],
              truth.tolerances[hit.slot]);
        if (i > 0)
            CHECK(hits[i - 1].key < hit.key || (hits[i - 1].key == hit.key && hits[i - 1].slot < hit.slot),
                  "%s: hits %zu and %zu are out of order", what, i - 1, i);
    }
}

void Judge::check_exact(const char *what, const Index &index, const Search &search, const Truth &truth,
                        const Hits &hits) const
{
    check_sound(what, index, search, truth, hits);
    /* Nothing that is missing could come before the last hit. With sound keys that is all. */
    std::vector<uint8_t> seen(index.nodes);
    for (const Hit &hit : hits) {
        if (hit.slot >= index.nodes)
            return;
        seen[hit.slot] = 1;
    }
    if (hits.empty())
        return;
    for (uint32_t i = 0; i < index.nodes; i++)
        if (!seen[i] && index.returnable(i, search.filter))
            CHECK(truth.keys[i] + truth.tolerances[i] >= hits.back().key,
                  "%s: slot %u with %.9g is missing before %.9g", what, i, truth.keys[i], hits.back().key);
}

double Judge::recall(const Index &index, const Search &search, const Truth &truth, const Hits &hits) const
{
    double kth = kth_key(index, search.filter, truth, search.k);
    uint32_t expected = std::min(search.k, count_returnable(index, search.filter));
    if (expected == 0)
        return 1;
    uint32_t good = 0;
    for (const Hit &hit : hits)
        good += hit.slot < index.nodes && truth.keys[hit.slot] <= kth + 2 * truth.tolerances[hit.slot];
    return double(good) / expected;
}

void Recalls::check(const char *what, double least) const
{
    for (size_t i = 0; i < sums_.size(); i++) {
        const Subject &subject = all()[i];
        double recall = sums_[i] / std::max(counts_[i], 1u), reference = sums_[0] / std::max(counts_[0], 1u);
        CHECK(recall >= least - 1e-9, "%s, %s: recall %.4f, not %.4f", subject.name.c_str(), what, recall, least);
        CHECK(recall >= reference - kRecallSlack, "%s, %s: recall %.4f, the reference %.4f", subject.name.c_str(), what,
              recall, reference);
        if (i > 0 || getenv("VECGPU_PARITY_VERBOSE"))
            test::note("%s, %s: recall %.4f (reference %.4f)", subject.name.c_str(), what, recall, reference);
    }
}

void measure_index(const char *what, const Index &index, const Data &queries, const Search &asked, Recalls *recalls)
{
    Judge judge(index);
    std::vector<Truth> truths;
    for (uint32_t q = 0; q < queries.n; q++)
        truths.push_back(judge.truth(queries.at(q)));
    for (size_t i = 0; i < all().size(); i++) {
        const Subject &subject = all()[i];
        Mirror mirror(subject, index);
        std::string name = subject.name + ", " + what;
        Search search = asked;
        search.form = SearchForm::Exact;
        std::vector<Hits> hits = parity::search(mirror, subject.stream, search, queries);
        for (uint32_t q = 0; q < queries.n; q++)
            judge.check_exact((name + ", exact").c_str(), index, search, truths[q], hits[q]);
        search.form = SearchForm::Graph;
        hits = parity::search(mirror, subject.stream, search, queries);
        for (uint32_t q = 0; q < queries.n; q++) {
            judge.check_sound((name + ", graph").c_str(), index, search, truths[q], hits[q]);
            if (recalls)
                recalls->add(i, judge.recall(index, search, truths[q], hits[q]));
        }
    }
}

void check_index(const char *what, const Index &index, const Data &queries, const Search &search, double least)
{
    Recalls recalls;
    measure_index(what, index, queries, search, &recalls);
    recalls.check(what, least);
}

} // namespace parity
