/*
 * device_bench.cpp: figures of one device behind engine/device.h: exact and graph search by batch size.
 *
 *   device_bench DEVICE.so [--base FILE --query FILE] [--rows N] [--dimensions D] [--queries N]
 *                [--storages f32,f16,bf16,i8] [--exact] [--graph] [--ef 40,64,...] [--k 10,100] [--batches 1,16,...]
 *                [--m M] [--ef-construction E] [--graph-file FILE] [--cosine | --ip] [--normalise] [--check]
 *                [--self] [--filter SHARE] [--calls N] [--forms] [--latency]
 *
 * Files are .u8bin or .fbin (bench/README.md). Without files the rows are made up: 10,000 clusters of a 16-d latent
 * space. The graph is the one that CREATE INDEX builds (core/build.h); --graph-file keeps it for the next run over the
 * same rows. Truth is the device's exact search, itself held against double for some queries with --check.
 * --forms prints what the engine would measure of the mirror (engine/cost_model.h) and decide, three times.
 * --latency: wall times of single graph queries: one caller with pauses, several callers, one beside large batches.
 * Times: "kernel" is the device's own (from the start of the first kernel to the end of the last), "wall" is the whole
 * call with copies in both directions; medians of several calls.
 */
#include "device_sets.h"
#include "engine/cost_model.h"
#include "engine/device.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <random>
#include <string>
#include <thread>
#include <vector>

using namespace vecgpu;
using namespace vecgpu::bench;

namespace {

double seconds()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

const DeviceApi *api;
Device *device;
DeviceStream *stream;
char error[kErrorBytes];

void must(Status status, const char *what)
{
    if (status != Status::Ok) {
        printf("%s: status %d: %s\n", what, int(status), error);
        exit(1);
    }
}

struct Answer {
    uint32_t k;
    std::vector<Hit> hits;
    std::vector<uint32_t> counts;
    double kernel_us = 0, wall_us = 0; /* of one call */
};

/* All queries in calls of `batch`; times are medians over the calls. */
Answer ask(DeviceMirror *mirror, const Set &queries, uint32_t count, uint32_t batch, BatchParams params, uint32_t calls)
{
    Answer answer;
    answer.k = params.k;
    answer.hits.resize(size_t(count) * params.k);
    answer.counts.resize(count);
    std::vector<BatchQuery> list(count);
    for (uint32_t q = 0; q < count; q++)
        list[q] = {queries.at(q), answer.hits.data() + size_t(q) * params.k, &answer.counts[q]};
    std::vector<double> kernel, wall;
    uint32_t done = 0;
    for (uint32_t c = 0; c < calls || done < count; c++) {
        uint32_t first = count <= batch ? 0 : uint32_t(uint64_t(c) * batch % count);
        uint32_t n = std::min(batch, count - first);
        BatchTimes times;
        double start = seconds();
        must(api->search(stream, mirror, &params, list.data() + first, n, nullptr, nullptr, &times, error), "search");
        double end = seconds();
        if (n == batch && c > 0) {
            kernel.push_back(times.kernel_ns / 1e3);
            wall.push_back((end - start) * 1e6);
        }
        done += n;
        if (c > 20000)
            break;
    }
    std::sort(kernel.begin(), kernel.end());
    std::sort(wall.begin(), wall.end());
    if (!kernel.empty()) {
        answer.kernel_us = kernel[kernel.size() / 2];
        answer.wall_us = wall[wall.size() / 2];
    }
    return answer;
}

/* Share of the first k that are as near as the k-th of the truth. */
double recall(const Answer &truth, const Answer &got, uint32_t count, uint32_t k)
{
    uint64_t good = 0, all = 0;
    for (uint32_t q = 0; q < count; q++) {
        const Hit *t = truth.hits.data() + size_t(q) * truth.k, *g = got.hits.data() + size_t(q) * got.k;
        uint32_t n = std::min(k, truth.counts[q]);
        all += n;
        for (uint32_t i = 0; i < std::min(k, got.counts[q]); i++)
            good += n > 0 && g[i].key <= t[n - 1].key + 1e-5f * fabsf(t[n - 1].key);
    }
    return all ? double(good) / double(all) : 1;
}

bool same(const Answer &a, const Answer &b, uint32_t count)
{
    for (uint32_t q = 0; q < count; q++)
        if (a.counts[q] != b.counts[q] ||
            memcmp(a.hits.data() + size_t(q) * a.k, b.hits.data() + size_t(q) * b.k, a.counts[q] * sizeof(Hit)) != 0)
            return false;
    return true;
}

/* One caller with a stream of its own: single queries with pauses, until `stop`, or each once. Wall times, sorted. */
std::vector<double> ask_singles(DeviceMirror *mirror, const Set &queries, BatchParams params, const Answer &expected,
                                uint32_t first, uint32_t count, double pause, const std::atomic<bool> *stop)
{
    DeviceStream *own;
    char problem[kErrorBytes];
    must(api->stream_open(device, &own, problem), "stream");
    std::vector<double> wall;
    std::vector<Hit> hits(params.k);
    uint32_t found = 0, wrong = 0;
    for (uint32_t i = 0; stop ? !*stop : i < count; i++) {
        const uint32_t q = (first + i) % queries.n;
        BatchQuery query = {queries.at(q), hits.data(), &found};
        BatchTimes times;
        for (double until = seconds() + pause; seconds() < until;)
            ;
        double start = seconds();
        must(api->search(own, mirror, &params, &query, 1, nullptr, nullptr, &times, problem), problem);
        wall.push_back((seconds() - start) * 1e6);
        wrong += found != expected.counts[q] ||
                 memcmp(hits.data(), expected.hits.data() + size_t(q) * params.k, found * sizeof(Hit)) != 0;
    }
    api->stream_close(own);
    if (wrong)
        printf("    %u DIFFERENT ANSWERS\n", wrong);
    std::sort(wall.begin(), wall.end());
    return wall;
}

void print_wall(const char *what, double value, const std::vector<double> &wall)
{
    printf("    %s %3.0f: wall p50 %7.1f us, p90 %7.1f us, p99 %7.1f us, %zu queries\n", what, value,
           wall[wall.size() / 2], wall[wall.size() * 9 / 10], wall[wall.size() * 99 / 100], wall.size());
    fflush(stdout);
}

void latency(DeviceMirror *mirror, const Set &queries, BatchParams params, const Answer &expected)
{
    for (double pause : {0.0, 100.0, 400.0, 1500.0})
        print_wall("one caller, pause", pause,
                   ask_singles(mirror, queries, params, expected, 0, pause > 1000 ? 300 : 2000, pause * 1e-6, nullptr));
    for (uint32_t callers : {2u, 4u}) {
        std::vector<std::vector<double>> walls(callers);
        std::vector<std::thread> threads;
        for (uint32_t t = 0; t < callers; t++)
            threads.emplace_back(
                [&, t] { walls[t] = ask_singles(mirror, queries, params, expected, t * 1000, 2000, 0, nullptr); });
        for (std::thread &thread : threads)
            thread.join();
        std::vector<double> all;
        for (const std::vector<double> &wall : walls)
            all.insert(all.end(), wall.begin(), wall.end());
        std::sort(all.begin(), all.end());
        print_wall("callers", callers, all);
    }
    const uint32_t most = expected.counts.size();
    printf("    batch %u alone: wall %.1f us\n", most, ask(mirror, queries, most, most, params, 12).wall_us);
    std::atomic<bool> stop{false};
    std::vector<double> wall;
    std::thread beside([&] { wall = ask_singles(mirror, queries, params, expected, 0, 0, 0, &stop); });
    printf("    batch %u beside singles: wall %.1f us\n", most, ask(mirror, queries, most, most, params, 12).wall_us);
    stop = true;
    beside.join();
    print_wall("beside it, callers", 1, wall);
}

/* Rows that precede the k-th hit in double must be k - 1, up to what float32 may lose. */
void check_exact(const Encoded &rows, uint32_t n, uint32_t dimensions, Metric metric, const Set &queries,
                 const Answer &answer)
{
    size_t bytes = row_bytes(rows.storage, dimensions);
    std::vector<float> row(dimensions);
    uint32_t wrong = 0, checked = 0;
    for (uint32_t q = 0; q < queries.n && checked < 16; q += std::max(1u, queries.n / 16), checked++) {
        std::vector<double> keys(n);
        const float *query = queries.at(q);
        double query2 = 0;
        for (uint32_t d = 0; d < dimensions; d++)
            query2 += double(query[d]) * query[d];
        for (uint32_t i = 0; i < n; i++) {
            decode_row(rows.storage, rows.rows.data() + i * bytes, dimensions, row.data());
            double l2 = 0, dot = 0, row2 = 0;
            for (uint32_t d = 0; d < dimensions; d++) {
                double x = row[d], y = query[d];
                l2 += (x - y) * (x - y);
                dot += x * y;
                row2 += x * x;
            }
            keys[i] = metric == Metric::L2 ? l2 : metric == Metric::Cosine ? 1 - dot / sqrt(row2 * query2) : -dot;
        }
        std::vector<double> sorted = keys;
        std::nth_element(sorted.begin(), sorted.begin() + answer.k - 1, sorted.end());
        double limit = sorted[answer.k - 1], slack = 2e-5 * (fabs(limit) + (metric == Metric::Cosine ? 1 : 0)) +
                                                     (rows.storage == Storage::Int8 ? 1e-4 * query2 : 0);
        for (uint32_t i = 0; i < answer.k; i++)
            wrong += keys[answer.hits[size_t(q) * answer.k + i].slot] > limit + slack;
    }
    printf("  checked in double: %u queries, %u wrong hits\n", checked, wrong);
}

std::vector<uint32_t> numbers(const char *text)
{
    std::vector<uint32_t> list;
    for (const char *p = text; *p; p = *p == ',' ? p + 1 : p)
        list.push_back(uint32_t(strtoul(p, const_cast<char **>(&p), 10)));
    return list;
}

void print_forms(DeviceMirror *mirror, const Set &queries, uint32_t n, uint32_t largest)
{
    std::vector<Hit> hits(size_t(kLargestFormBatch) * kMaxHits);
    std::vector<uint32_t> counts(kLargestFormBatch);
    std::vector<BatchQuery> asked(kLargestFormBatch);
    uint32_t next = 0, runs = 0;
    auto run = [&](SearchForm form, uint32_t width, uint32_t batch) {
        uint32_t k = form == SearchForm::Graph ? std::min(width, FormModel::kWalkK) : width;
        for (uint32_t i = 0; i < batch; i++)
            asked[i] = {queries.at(next++ % queries.n), &hits[size_t(i) * k], &counts[i]};
        BatchParams params = {form, k, form == SearchForm::Graph ? width : 0, queries.dimensions, nullptr};
        double from = seconds();
        must(api->search(stream, mirror, &params, asked.data(), batch, nullptr, nullptr, nullptr, error), "search");
        runs++;
        return uint64_t((seconds() - from) * 1e9);
    };
    for (int round = 0; round < 3; round++) {
        double from = seconds();
        FormModel model = FormModel::measured(n, largest, run);
        printf("  forms: %u runs in %.1f ms; exact from ef %u (k 22), %u (k 200)\n", runs, (seconds() - from) * 1e3,
               model.exact_from(22), model.exact_from(200));
        runs = 0;
        for (auto [ef, k] : {std::pair{40u, 22u}, {100u, 22u}, {200u, 200u}}) {
            float exact[kReferenceBatches], graph[kReferenceBatches];
            model.times(ef, k, exact, graph);
            printf("    ef %3u, k %3u: batch: exact / graph us", ef, k);
            for (uint32_t b = 0; b < kReferenceBatches; b++)
                printf("  %u: %.0f / %.0f", kFormBatches[b], double(exact[b]), double(graph[b]));
            printf("  %s\n", model.choose(ef, k) == SearchForm::Exact ? "exact" : "graph");
        }
    }
}

} // namespace

int main(int argc, char **argv)
{
    const char *object = nullptr, *base = nullptr, *query = nullptr, *graph_file = nullptr, *storages = "f32";
    uint32_t n = 1000000, dimensions = 128, m = 16, ef_construction = 64;
    bool exact = false, graph = false, forms = false, check = false, self = false, normalise = false, single = false;
    uint32_t asked = 10000, calls = 0;
    double share = 0;
    Metric metric = Metric::L2;
    std::vector<uint32_t> efs = {64, 96}, ks = {10, 100}, batches = {1, 16, 64, 256, 1024, 10000};
    for (int i = 1; i < argc; i++) {
        std::string word = argv[i];
        auto value = [&] { return i + 1 < argc ? argv[++i] : argv[i]; };
        if (word == "--base")
            base = value();
        else if (word == "--query")
            query = value();
        else if (word == "--rows")
            n = uint32_t(atol(value()));
        else if (word == "--dimensions")
            dimensions = uint32_t(atol(value()));
        else if (word == "--m")
            m = uint32_t(atol(value()));
        else if (word == "--ef-construction")
            ef_construction = uint32_t(atol(value()));
        else if (word == "--graph-file")
            graph_file = value();
        else if (word == "--storages")
            storages = value();
        else if (word == "--ef")
            efs = numbers(value());
        else if (word == "--k")
            ks = numbers(value());
        else if (word == "--batches")
            batches = numbers(value());
        else if (word == "--queries")
            asked = uint32_t(atol(value()));
        else if (word == "--calls")
            calls = uint32_t(atol(value()));
        else if (word == "--self")
            self = true;
        else if (word == "--filter")
            share = atof(value());
        else if (word == "--cosine")
            metric = Metric::Cosine;
        else if (word == "--ip")
            metric = Metric::InnerProduct;
        else if (word == "--normalise")
            normalise = true;
        else if (word == "--exact")
            exact = true;
        else if (word == "--graph")
            graph = true;
        else if (word == "--forms")
            forms = true;
        else if (word == "--check")
            check = true;
        else if (word == "--latency")
            single = true;
        else
            object = argv[i];
    }
    void *library = object ? dlopen(object, RTLD_NOW | RTLD_LOCAL) : nullptr;
    DeviceEntryPoint entry = library ? reinterpret_cast<DeviceEntryPoint>(dlsym(library, kDeviceEntry)) : nullptr;
    if (!entry) {
        fprintf(stderr, "%s: %s\n", object ? object : "no device", dlerror());
        return 2;
    }
    api = entry();
    DeviceInfo info;
    must(api->open(0, &device, &info, error), "open");
    must(api->stream_open(device, &stream, error), "stream");

    double start = seconds();
    Set rows = base ? read_set(base, n) : make_set(n, dimensions, 0);
    Set queries = query ? read_set(query, asked) : make_set(asked, dimensions, 1);
    n = rows.n;
    dimensions = rows.dimensions;
    if (normalise)
        for (Set *set : {&rows, &queries})
            for (uint32_t i = 0; i < set->n; i++) {
                float *row = set->values.data() + size_t(i) * dimensions;
                double norm2 = 0;
                for (uint32_t d = 0; d < dimensions; d++)
                    norm2 += double(row[d]) * row[d];
                for (uint32_t d = 0; norm2 > 0 && d < dimensions; d++)
                    row[d] = float(row[d] / sqrt(norm2));
            }
    printf("%s; %u rows of %u dimensions, %u queries (%.1f s)\n", info.name, n, dimensions, queries.n,
           seconds() - start);
    OwnGraph own;
    if (graph) {
        start = seconds();
        if (!graph_file || !read_graph(&own, graph_file, n, m)) {
            build(&own, encode(rows, Storage::Float32), n, dimensions, metric, m, ef_construction);
            if (graph_file)
                write_graph(own, graph_file, n, m);
        }
        printf("graph m %u, ef_construction %u: %.1f s\n", m, ef_construction, seconds() - start);
    }
    std::vector<uint64_t> filter;
    if (share > 0) {
        std::mt19937_64 random(5);
        filter.resize(n / 64 + 1);
        for (uint32_t i = 0; i < n; i++)
            if (random() % 100000 < share * 100000)
                filter[i / 64] |= uint64_t(1) << i % 64;
    }
    const uint64_t *bits = share > 0 ? filter.data() : nullptr;
    for (const char *name : {"f32", "f16", "bf16", "i8"}) {
        std::string list = std::string(",") + storages + ",";
        if (list.find(std::string(",") + name + ",") == std::string::npos)
            continue;
        Storage storage = !strcmp(name, "f32")    ? Storage::Float32
                          : !strcmp(name, "f16")  ? Storage::Float16
                          : !strcmp(name, "bf16") ? Storage::BFloat16
                                                  : Storage::Int8;
        Encoded encoded = encode(rows, storage);
        MirrorShape shape = {graph ? IndexKind::Hnsw : IndexKind::Flat, metric, storage, 4, dimensions, m, n,
                             graph ? uint32_t(own.owner.size()) : 0};
        DeviceMirror *mirror;
        start = seconds();
        must(api->mirror_create(device, &shape, &mirror, error), "mirror_create");
        must(api->mirror_write(stream, mirror, Region::Vectors, 0, n, encoded.rows.data(), error), "vectors");
        std::vector<SlotRecord> slots(n, SlotRecord{{0, 0, 1}, kRowLive});
        must(api->mirror_write(stream, mirror, Region::Slots, 0, n, slots.data(), error), "slots");
        MirrorState state = {n, shape.upper, kNone, 0, 0, 0};
        if (graph) {
            must(api->mirror_write(stream, mirror, Region::Links, 0, n, own.links0.data(), error), "links");
            uint32_t bytes = region_shape(Region::Upper, storage, dimensions, m, 4).record_bytes;
            std::vector<uint8_t> upper(size_t(shape.upper) * bytes, 0xff);
            for (uint32_t i = 0; i < shape.upper; i++) {
                UpperRecord record = {own.owner[i], uint8_t(i - own.upper_offset[own.owner[i]] + 1), {}};
                memcpy(upper.data() + size_t(i) * bytes, &record, sizeof record);
            }
            must(api->mirror_write(stream, mirror, Region::Upper, 0, shape.upper, upper.data(), error), "upper");
            state.entry_level = own.graph.entry_level;
            state.entry_handle = state.entry_level > 0
                                     ? own.upper_offset[own.graph.entry] + uint32_t(state.entry_level) - 1
                                     : own.graph.entry;
        }
        must(api->mirror_commit(stream, mirror, &state, error), "commit");
        printf("%s: mirror of %.0f MB in %.2f s\n", name, api->mirror_bytes(device, &shape) / 1e6, seconds() - start);

        if (forms)
            print_forms(mirror, queries, n, info.max_batch);
        uint32_t most = std::min(queries.n, 10000u);
        BatchParams params = {SearchForm::Exact, ks[0], 0, dimensions, bits};
        Answer truth = ask(mirror, queries, most, most, params, 1);
        if (check)
            check_exact(encoded, n, dimensions, metric, queries, truth);
        if (exact)
            for (uint32_t k : ks)
                for (uint32_t batch : batches) {
                    params.k = k;
                    uint32_t count = std::min(most, batch < 100 ? 512u : most);
                    Answer answer = ask(mirror, queries, count, batch, params, calls ? calls : batch >= 1000 ? 6 : 64);
                    printf("  exact k %u, batch %5u: kernel %9.1f us, wall %9.1f us, %.3f M/s%s\n", k, batch,
                           answer.kernel_us, answer.wall_us, batch / answer.kernel_us,
                           k != ks[0]                   ? ""
                           : same(truth, answer, count) ? ", same rows"
                                                        : ", DIFFERENT ROWS");
                    fflush(stdout);
                }
        if (graph)
            for (uint32_t ef : efs) {
                params = {SearchForm::Graph, ks[0], ef, dimensions, bits};
                Answer all = ask(mirror, queries, most, most, params, calls ? 1 : 6);
                printf("  graph ef %u: recall@%u %.5f\n", ef, ks[0], recall(truth, all, most, ks[0]));
                for (uint32_t batch : batches) {
                    uint32_t count = std::min(most, batch < 100 ? 512u : most);
                    Answer answer = ask(mirror, queries, count, batch, params, calls ? calls : batch >= 1000 ? 6 : 64);
                    printf("    batch %5u: kernel %9.1f us, wall %9.1f us, %.3f M/s%s\n", batch, answer.kernel_us,
                           answer.wall_us, batch / answer.kernel_us,
                           same(all, answer, count) ? ", same rows" : ", DIFFERENT ROWS");
                    fflush(stdout);
                }
                if (single)
                    latency(mirror, queries, params, all);
            }
        if (self && graph) {
            /* Stored rows as queries: the row itself or an equal one must come first. */
            Set stored;
            stored.n = std::min(n, 10000u);
            stored.dimensions = dimensions;
            stored.values.resize(size_t(stored.n) * dimensions);
            for (uint32_t i = 0; i < stored.n; i++)
                decode_row(storage, encoded.rows.data() + size_t(i) * (n / stored.n) * row_bytes(storage, dimensions),
                           dimensions, stored.values.data() + size_t(i) * dimensions);
            params = {SearchForm::Graph, 10, 64, dimensions, nullptr};
            Answer answer = ask(mirror, stored, stored.n, stored.n, params, 1);
            uint32_t good = 0;
            for (uint32_t i = 0; i < stored.n; i++) {
                uint32_t slot = answer.hits[size_t(i) * 10].slot, own = i * (n / stored.n);
                size_t bytes = row_bytes(storage, dimensions);
                good += slot == own ||
                        memcmp(encoded.rows.data() + slot * bytes, encoded.rows.data() + own * bytes, bytes) == 0;
            }
            printf("  self-match, ef 64: %.2f %%\n", 100.0 * good / stored.n);
        }
        api->mirror_drop(mirror);
    }
    api->stream_close(stream);
    api->close(device);
    return 0;
}
