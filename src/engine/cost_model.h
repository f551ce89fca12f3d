/*
 * cost_model.h: whether a mirror is searched exactly or through its graph where the session leaves it open (SearchForm::Auto).
 *
 * Measured on the mirror itself, when it has been loaded: what one call of the device takes in either form, for batches of 1,
 * 16, 64 and 256 queries that stand for expected use. From then on the choice is a function of ef and k alone, never of what is queued:
 * the same query gives the same rows in every batch (law 10).
 *
 * The rule: exact where the geometric mean of its times over the reference batches is not above that of the graph. An exact answer has
 * recall 1 and never comes short, so at the same price it is the better one; its price is the bandwidth of the whole mirror for each batch,
 * which one query pays alone and 256 share. The mean gives each size the same say and asks for no guess about the load.
 *
 * The model: for each batch, a walk's time is linear in ef through two points; a scan's is a step function of k (devices take other
 * kernels above some k: the GPU above 256). A batch whose call would take too long is not run: its time is that of the smaller one, in proportion, which
 * no device needs more than.
 */
#pragma once

#include <cstdint>
#include <functional>

#include "protocol/message.h"

namespace vecgpu {

constexpr uint32_t kFormBatches[kReferenceBatches] = {1, 16, 64, 256};
constexpr uint32_t kLargestFormBatch = kFormBatches[kReferenceBatches - 1];

class FormModel {
public:
    /* Fewer nodes than that are searched exactly: a walk of usual width computes as many keys. */
    static constexpr uint32_t kTinyNodes = 4096;

    /* For mirrors that need no measuring: no graph, or so few nodes; and for those that could not be measured. */
    static FormModel always(SearchForm form);

    /*
     * ns that a search of `batch` queries took, 0 if it failed. With SearchForm::Graph `width` is ef, and k too where that is
     * less than kWalkK; with SearchForm::Exact it is k.
     */
    using Run = std::function<uint64_t(SearchForm form, uint32_t width, uint32_t batch)>;
    static constexpr uint32_t kWalkK = 32;

    /*
     * Runs take kBudgetNs at most, and as much again for the first of each size, which is not counted. `largest`: the most queries that a
     * call takes. A run that fails: the graph, as without a model.
     */
    static FormModel measured(uint32_t nodes, uint32_t largest, const Run &run);
    static constexpr uint64_t kBudgetNs = 15000000;

    SearchForm choose(uint32_t ef, uint32_t k) const;

    /* The least ef, at least k, from which on the form is exact; 0: none up to kMostEf. */
    uint32_t exact_from(uint32_t k) const;
    static constexpr uint32_t kMostEf = 10000; /* that a session can set */

    /* µs by reference batch; zeroes if nothing was measured. */
    void times(uint32_t ef, uint32_t k, float *exact_us, float *graph_us) const;

    /* Of the mirror when it was measured. */
    uint32_t nodes() const { return nodes_; }

    /* Whether a mirror of so many nodes is another matter: less than half of what was measured, or more than twice. */
    bool outgrown(uint32_t nodes) const;

private:
    static constexpr uint32_t kWalks = 2, kScans = 3;
    static constexpr uint32_t kWalkEf[kWalks] = {40, 200};
    static constexpr uint32_t kScanK[kScans] = {32, 256, 512};

    double walk_ns(uint32_t ef, uint32_t batch) const;
    double scan_ns(uint32_t k, uint32_t batch) const;

    SearchForm fixed_ = SearchForm::Graph; /* Auto: compare */
    uint32_t nodes_ = 0;
    double walk_[kWalks][kReferenceBatches] = {};
    double scan_[kScans][kReferenceBatches] = {};
};

} // namespace vecgpu
