/*
 * build.cpp: the threads of the in-memory build.
 *
 * Phases, each finished by all workers before the next: aux values of the rows; insertion; connectivity (one worker). Every
 * worker calls step() until it says that nothing is left; without threads the caller does.
 */
#include "core/build.h"
#include "core/connect.h"
#include "core/graph_store.h"

#include <cstdlib>
#include <new>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <time.h>

namespace vecgpu {

/* ---- graph arrays ---- */

uint64_t graph_count_records(uint64_t seed, uint32_t m, uint32_t first, uint32_t last)
{
    uint64_t records = 0;
    for (uint32_t slot = first; slot < last; slot++)
        records += uint64_t(random_level(seed, slot, m));
    return records;
}

Graph graph_make(uint32_t m)
{
    Graph graph = {};
    graph.m = m;
    graph.entry = kNone;
    graph.entry_level = -1;
    return graph;
}

bool graph_add_nodes(Graph *graph, uint64_t seed, uint32_t last)
{
    uint32_t first = graph->count;
    uint64_t records = graph->records;
    for (uint32_t slot = first; slot < last; slot++) {
        int level = random_level(seed, slot, graph->m);
        if (records + uint64_t(level) >= kNone)
            return false;
        graph->levels[slot] = uint8_t(level);
        graph->upper_offset[slot] = level > 0 ? uint32_t(records) : kNone;
        graph->locks[slot] = 0;
        records += uint64_t(level);
    }
    size_t m = graph->m;
    memset(graph->links0 + first * 2 * m, 0xff, graph_links0_bytes(last - first, graph->m));
    if (records > graph->records)
        memset(graph->upper + graph->records * m, 0xff, graph_upper_bytes(records - graph->records, graph->m));
    graph->count = last;
    graph->records = records;
    return true;
}

/* ---- the builder ---- */

struct Worker {
    Builder *builder;
    uint32_t index;
    pthread_t thread;
    Inserter<GraphStore> inserter;
    float *vector; /* one decoded row */
};

struct Builder {
    GraphStore store;
    BuildControl *control;
    uint32_t first, last;
    uint32_t insert_first; /* the node that was inserted before all others, or kNone */
    uint32_t warm;         /* nodes that worker 0 inserts alone */
    uint32_t asked, threads, wanted;
    Worker *worker; /* `wanted` of them; number 0 is the caller's when there are no threads */
    Connector connector;
    bool connect;

    std::atomic<uint64_t> next_aux{0}, next_node{0}; /* 64 bits: workers add past the end */
    std::atomic<uint64_t> aux_done{0}, nodes_done{0};
    std::atomic<bool> entry_done{false};
    std::atomic<uint32_t> active{0};
};

static constexpr uint32_t kAuxChunk = 256;
static constexpr uint32_t kNodeChunk = 8;
static constexpr uint32_t kWarm = 512;

static void compute_aux(Worker *worker, uint32_t from, uint32_t to)
{
    GraphStore &store = worker->builder->store;
    PairMetric pair =
        make_pair_metric(store.params.metric, store.params.storage, store.params.dimensions, store.params.max_norm);
    for (uint32_t slot = from; slot < to; slot++) {
        const void *row = store.row(slot, nullptr);
        const float *vector = static_cast<const float *>(row);
        if (store.params.storage != Storage::Float32) {
            decode_row(store.params.storage, row, store.params.dimensions, worker->vector);
            vector = worker->vector;
        }
        store.aux_values[slot] = pair_aux(pair, vector, row);
    }
}

/* False: told to stop. */
static bool insert_node(Worker *worker, uint32_t slot)
{
    Builder *b = worker->builder;
    if (slot == b->insert_first)
        return true;
    InsertResult result = worker->inserter.insert(slot, b->store.graph->levels[slot], false);
    if (result.kind == InsertResult::Stopped)
        return false;
    b->control->done.fetch_add(1, std::memory_order_relaxed);
    return true;
}

static void pause_briefly()
{
    timespec time = {0, 50000};
    nanosleep(&time, nullptr);
}

/*
 * The node of the highest level goes first: then the entry point never changes while threads run. (Of several the lowest
 * slot; only if it is higher than the entry point of an existing graph.)
 */
static bool insert_entry(Worker *worker)
{
    Builder *b = worker->builder;
    Graph *graph = b->store.graph;
    uint32_t best = kNone;
    int level = graph->entry_level;
    for (uint32_t slot = b->first; slot < b->last; slot++) {
        if (graph->levels[slot] > level) {
            level = graph->levels[slot];
            best = slot;
        }
    }
    bool good = best == kNone || insert_node(worker, best);
    b->insert_first = best;
    return good;
}

/* A piece of work; false: nothing left for this worker. */
static bool step(Worker *worker)
{
    Builder *b = worker->builder;
    if (b->control->stop.load(std::memory_order_relaxed))
        return false;

    if (b->store.aux_values) {
        uint64_t count = b->store.count();
        if (b->next_aux.load(std::memory_order_relaxed) < count) {
            uint64_t from = b->next_aux.fetch_add(kAuxChunk, std::memory_order_relaxed);
            if (from < count) {
                uint64_t to = from + kAuxChunk < count ? from + kAuxChunk : count;
                compute_aux(worker, uint32_t(from), uint32_t(to));
                b->aux_done.fetch_add(to - from, std::memory_order_acq_rel);
            }
            return true;
        }
        if (b->aux_done.load(std::memory_order_acquire) < count) {
            pause_briefly();
            return true;
        }
    }

    uint64_t nodes = b->last - b->first;
    uint64_t done = b->nodes_done.load(std::memory_order_acquire);
    if (worker->index == 0 && !b->entry_done.load(std::memory_order_relaxed)) {
        if (!insert_entry(worker))
            return false;
        b->entry_done.store(true, std::memory_order_release);
        return true;
    }
    if (worker->index > 0 && (done < b->warm || !b->entry_done.load(std::memory_order_acquire))) {
        pause_briefly();
        return true;
    }
    if (b->next_node.load(std::memory_order_relaxed) < nodes) {
        uint64_t from = b->next_node.fetch_add(kNodeChunk, std::memory_order_relaxed);
        if (from < nodes) {
            uint64_t to = from + kNodeChunk < nodes ? from + kNodeChunk : nodes;
            for (uint64_t i = from; i < to; i++)
                if (!insert_node(worker, uint32_t(b->first + i)))
                    return false;
            b->nodes_done.fetch_add(to - from, std::memory_order_acq_rel);
        }
        return true;
    }

    if (worker->index > 0 || !b->connect)
        return false;
    if (done < nodes) {
        pause_briefly();
        return true;
    }
    if (!b->connector.step(&worker->inserter))
        return true;
    b->control->linked.store(b->connector.linked());
    b->control->unreachable.store(b->connector.left());
    return false;
}

static void *run_worker(void *argument)
{
    Worker *worker = static_cast<Worker *>(argument);
#ifdef __linux__
    if (worker->builder->store.params.background)
        setpriority(PRIO_PROCESS, 0, 5); /* of this thread alone, on Linux */
#endif
    while (step(worker)) {
    }
    worker->builder->active.fetch_sub(1, std::memory_order_acq_rel);
    return nullptr;
}

static void free_builder(Builder *b)
{
    for (uint32_t i = 0; b->worker && i < b->wanted; i++) {
        b->worker[i].inserter.release();
        free(b->worker[i].vector);
    }
    free(b->worker);
    free(b->store.aux_values);
    if (!b->store.graph->keys0) {
        free(b->store.keys0);
        free(b->store.upper_keys);
    }
    b->connector.release(kHeap);
    b->~Builder();
    free(b);
}

static bool init_worker(Builder *b, uint32_t index)
{
    Worker *worker = b->worker + index;
    worker->builder = b;
    worker->index = index;
    worker->vector = allocate_array<float>(kHeap, b->store.params.dimensions);
    return worker->inserter.init(&b->store, kHeap) && worker->vector;
}

/* As many as can be had, in a row from 0. Signals are the caller's thread's business. */
static void spawn(Builder *b)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (uint32_t i = 0; i < b->asked; i++) {
        if (i > 0 && !init_worker(b, i))
            break;
        b->active.fetch_add(1, std::memory_order_relaxed);
        if (pthread_create(&b->worker[i].thread, nullptr, run_worker, &b->worker[i]) != 0) {
            b->active.fetch_sub(1, std::memory_order_relaxed);
            break;
        }
        b->threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
}

BuildStatus build_start(Builder **out, Graph *graph, const void *rows, uint32_t first, uint32_t last,
                   const BuildParams &params, BuildControl *control)
{
    void *place = malloc(sizeof(Builder));
    if (!place)
        return BuildStatus::OutOfMemory;
    Builder *b = new (place) Builder();
    b->store.graph = graph;
    b->store.control = control;
    b->store.params = params;
    b->store.rows = static_cast<const char *>(rows);
    b->store.bytes = row_bytes(params.storage, params.dimensions);
    b->store.first = first;
    b->control = control;
    b->first = first;
    b->last = last;
    b->insert_first = kNone;
    b->connect = params.connect;
    b->asked = params.threads;
    b->wanted = params.threads > 0 ? params.threads : 1;
    uint32_t nodes = last - first;
    b->warm = first >= kWarm ? 0 : nodes < kWarm ? nodes : kWarm;

    size_t m = graph->m;
    bool good = true;
    b->worker = static_cast<Worker *>(calloc(b->wanted, sizeof(Worker)));
    good &= b->worker != nullptr;
    if (params.metric != Metric::L2)
        good &= (b->store.aux_values = allocate_array<float>(kHeap, graph->count)) != nullptr;
    if (graph->keys0) {
        b->store.keys0 = graph->keys0;
        b->store.upper_keys = graph->upper_keys;
    } else {
        good &= (b->store.keys0 = allocate_array<float>(kHeap, graph->count * 2 * m)) != nullptr;
        good &= (b->store.upper_keys = allocate_array<float>(kHeap, graph->records * m)) != nullptr;
    }
    if (params.connect)
        good &= b->connector.init(&b->store, kHeap);
    if (!good || !init_worker(b, 0)) {
        free_builder(b);
        return BuildStatus::OutOfMemory;
    }
    if (!graph->keys0) {
        advise_huge_pages(b->store.keys0, graph->count * 2 * m * sizeof(float));
        /* Distances of links that are there already are not known: NaN, see Inserter::add_by_keys. */
        memset(b->store.keys0, 0xff, first * 2 * m * sizeof(float));
        memset(b->store.upper_keys, 0xff, graph->records * m * sizeof(float));
    }
    spawn(b);
    *out = b;
    return BuildStatus::Ok;
}

uint64_t build_memory(const Graph &graph, const BuildParams &params, uint64_t nodes, uint64_t records)
{
    uint64_t m = graph.m, width = 2 * m;
    uint64_t ef = params.ef_construction > width ? params.ef_construction : width;
    uint64_t map = 64;
    while (map < ef * width * 2)
        map *= 2;
    uint64_t worker = sizeof(Worker) + map * sizeof(uint64_t) + ef * 22 + width * 64 + width * 12 * (kMaxLevel + 2) +
                      row_bytes(params.storage, params.dimensions) * (width + 3) + uint64_t(params.dimensions) * 12;
    return (params.threads > 0 ? params.threads : 1) * worker + nodes * width * sizeof(float) +
           records * m * sizeof(float) + (params.metric != Metric::L2 ? nodes * sizeof(float) : 0) +
           (params.connect ? nodes * 2 * sizeof(uint32_t) : 0);
}

static uint64_t milliseconds()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return uint64_t(time.tv_sec) * 1000 + uint64_t(time.tv_nsec) / 1000000;
}

bool build_poll(Builder *b)
{
    if (b->threads > 0)
        return b->active.load(std::memory_order_acquire) == 0;
    uint64_t end = milliseconds() + 5;
    do {
        if (!step(b->worker))
            return true;
    } while (milliseconds() < end);
    return false;
}

uint32_t build_threads(const Builder *b)
{
    return b->threads;
}

BuildStatus build_join(Builder *b)
{
    for (uint32_t i = 0; i < b->threads; i++)
        pthread_join(b->worker[i].thread, nullptr);
    while (b->threads == 0 && step(b->worker)) {
    }
    BuildStatus status = b->threads < b->asked ? BuildStatus::FewerThreads : BuildStatus::Ok;
    if (b->control->stop.load())
        status = BuildStatus::Stopped;
    free_builder(b);
    return status;
}

BuildStatus build_graph(Graph *graph, const void *rows, uint32_t first, uint32_t last, const BuildParams &params,
                   BuildControl *control)
{
    Builder *builder;
    BuildStatus status = build_start(&builder, graph, rows, first, last, params, control);
    return status == BuildStatus::Ok ? build_join(builder) : status;
}

} // namespace vecgpu
