/*
 * parity.h: what the parts of the parity program share: devices under test, mirrors on them, and what answers are held against.
 *
 * The truth is brute force in double over the stored rows, decoded, written here and nowhere else. A key may differ from it by what
 * summing in float32 in any order may lose; an answer is right if it is a right answer for some keys within that tolerance.
 */
#pragma once

#include "engine/device.h"
#include "graphs.h"
#include "test.h"

#include <string>
#include <vector>

namespace parity {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSlow = true; /* sanitizers are slow: smaller sets, same checks */
#else
constexpr bool kSlow = false;
#endif

/* A device under test. The first of all() is the host, the reference. */
struct Subject {
    std::string name;
    const DeviceApi *api;
    Device *device;
    DeviceInfo info;
    DeviceStream *stream; /* of the main thread */
    bool reference;
};
std::vector<Subject> &all();
const char *metric_name(Metric metric);
const char *storage_name(Storage storage);

/* Opens device `number`, with a stream; ends the program if that fails. */
Subject open_subject(const char *name, const DeviceApi *api, uint32_t number, bool reference);
void close_subject(Subject *subject);

MirrorShape shape_of(const Index &index);
MirrorState state_of(const Index &index);

/* A mirror; room for more where `nodes` and `upper` say so. Checks every call. */
class Mirror {
public:
    Mirror(const Subject &subject, const Index &index, uint32_t nodes = 0, uint32_t upper = 0);
    ~Mirror();
    Mirror(const Mirror &) = delete;

    /* Vectors from `first` on, all other records from 0 on. No commit. */
    void write(const Index &index, uint32_t first);
    void commit(const Index &index);

    const Subject &subject;
    DeviceMirror *mirror = nullptr;
    DeviceStream *stream; /* of writes */
};

using Hits = std::vector<Hit>;
using Filter = std::vector<uint64_t>;

/* A bit of each slot is set with this probability; bits beyond the nodes are set. */
Filter random_filter(uint32_t nodes, double share, uint64_t seed);

struct Search {
    SearchForm form = SearchForm::Exact;
    uint32_t k = 10;
    uint32_t ef = 40;
    const Filter *filter = nullptr;
};

/*
 * Searches for all queries, in batches of `batch` (0: as many as the device takes). Checks the status, that each query was reported
 * finished once and with its count, and that nothing was written beyond its hits.
 */
std::vector<Hits> search(const Mirror &mirror, DeviceStream *stream, const Search &search, const Data &queries,
                         uint32_t batch = 0);

bool same(const Hits &a, const Hits &b);

/* Keys of all rows for one query, in double, and how far a device's may be off. */
struct Truth {
    std::vector<double> keys, tolerances;
};

class Judge {
public:
    explicit Judge(const Index &index);

    Truth truth(const float *query) const;

    /* Checks what must hold for every answer: count, order, no doubles, only what may be returned, keys. */
    void check_sound(const char *what, const Index &index, const Search &search, const Truth &truth,
                     const Hits &hits) const;

    /* And that it is the exact answer, up to ties within the tolerance. */
    void check_exact(const char *what, const Index &index, const Search &search, const Truth &truth,
                     const Hits &hits) const;

    /* Share of the k nearest that were found. */
    double recall(const Index &index, const Search &search, const Truth &truth, const Hits &hits) const;

private:
    Metric metric_;
    Storage storage_;
    Data rows_; /* decoded */
};

/* Recall of each device over some queries. */
class Recalls {
public:
    Recalls() : sums_(all().size()), counts_(all().size()) {}

    void add(size_t subject, double recall)
    {
        sums_[subject] += recall;
        counts_[subject]++;
    }

    /* At least `least`, and no device finds less than the reference by more than kRecallSlack; more is welcome. */
    void check(const char *what, double least) const;

private:
    std::vector<double> sums_;
    std::vector<uint32_t> counts_;
};
constexpr double kRecallSlack = 0.002;

/* One index on all devices: exact answers are exact; answers of the graph form are sound, and counted in `recalls` if not null. */
void measure_index(const char *what, const Index &index, const Data &queries, const Search &search, Recalls *recalls);

/* The same with Recalls::check(). */
void check_index(const char *what, const Index &index, const Data &queries, const Search &search, double least);

/* ---- parts ---- */

void test_calls(); /* parity.cpp */
void test_exact(); /* exact.cpp */
void test_graph(); /* walks.cpp */
void test_sample(const char *folder);
void test_writes(); /* writes.cpp */
void test_faults(); /* faults.cpp: host only */
void test_far();    /* large.cpp: the last device */
void bench(const char *folder);

} // namespace parity
