/*
 * cost_model.cpp: see cost_model.h.
 */
#include "engine/cost_model.h"

#include <algorithm>
#include <cmath>

namespace vecgpu {

namespace {

/* No call is made that may take longer; none is repeated that takes longer than the second: it is hardly disturbed. */
constexpr double kLongestRunNs = 5000000, kLongestRepeatNs = 1000000;

/* Keys that a walk computes for each unit of ef, at least. */
constexpr double kKeysOfEf = 20;

/* Rows that are read in a row come so much faster than those that a walk meets. */
constexpr double kScanGain = 4;

constexpr int kRounds = 2; /* after the first; the least time counts */

/* One entry of the model, and how it comes about. */
struct Point {
    SearchForm form;
    uint32_t width;
    uint32_t batch; /* index of kFormBatches */
    double *ns;
};

} // namespace

FormModel FormModel::always(SearchForm form)
{
    FormModel model;
    model.fixed_ = form;
    return model;
}

FormModel FormModel::measured(uint32_t nodes, uint32_t largest, const Run &run)
{
    FormModel model;
    model.fixed_ = SearchForm::Auto;
    model.nodes_ = nodes;
    double spent = 0;
    bool failed = false;
    auto timed = [&](const Point &point) {
        double ns = static_cast<double>(run(point.form, point.width, kFormBatches[point.batch]));
        spent += ns;
        failed = failed || ns <= 0;
        return ns;
    };

    /*
     * The first run of a size brings in kernels and memory, so the second counts; how long it may take is known from the size before.
     * All walks come before the scans: the rate at which they meet scattered rows says about how long reading all rows can take.
     */
    Point points[(kWalks + kScans) * kReferenceBatches];
    uint32_t count = 0;
    auto first_look = [&](SearchForm form, uint32_t width, double *ns, double expected) {
        for (uint32_t b = 0; b < kReferenceBatches && !failed; b++) {
            if (b > 0)
                expected = ns[b - 1] * kFormBatches[b] / kFormBatches[b - 1];
            Point point = {form, width, b, &ns[b]};
            if (kFormBatches[b] > largest || expected > kLongestRunNs || spent + 2 * expected > kBudgetNs) {
                ns[b] = expected;
                continue;
            }
            run(form, width, kFormBatches[b]);
            ns[b] = timed(point);
            points[count++] = point;
        }
    };
    double key_ns = HUGE_VAL;
    for (uint32_t i = 0; i < kWalks; i++) {
        first_look(SearchForm::Graph, kWalkEf[i], model.walk_[i], i == 0 ? 0 : model.walk_[0][0] * kWalkEf[i] / kWalkEf[0]);
        for (uint32_t b = 0; b < kReferenceBatches; b++)
            key_ns = std::min(key_ns, model.walk_[i][b] / (kKeysOfEf * kWalkEf[i] * kFormBatches[b]));
    }
    for (uint32_t i = 0; i < kScans; i++)
        first_look(SearchForm::Exact, kScanK[i], model.scan_[i], i == 0 ? nodes * key_ns / kScanGain : model.scan_[i - 1][0]);

    /* Forms take turns, so that whatever else the device does meanwhile weighs on both. */
    for (int round = 0; round < kRounds; round++)
        for (uint32_t i = 0; i < count && !failed && spent + kLongestRepeatNs <= kBudgetNs; i++)
            if (*points[i].ns <= kLongestRepeatNs)
                *points[i].ns = std::min(*points[i].ns, timed(points[i]));

    if (failed)
        return always(SearchForm::Graph);
    /* Whatever was not run follows what was; and a wider walk is not a faster one. */
    for (uint32_t b = 1; b < kReferenceBatches; b++) {
        for (double *ns : {model.walk_[0], model.walk_[1], model.scan_[0], model.scan_[1], model.scan_[2]})
            ns[b] = std::min(ns[b], ns[b - 1] * kFormBatches[b] / kFormBatches[b - 1]);
    }
    for (uint32_t b = 0; b < kReferenceBatches; b++)
        model.walk_[1][b] = std::max(model.walk_[0][b], model.walk_[1][b]);
    return model;
}

double FormModel::walk_ns(uint32_t ef, uint32_t batch) const
{
    double low = walk_[0][batch], high = walk_[1][batch];
    double slope = (high - low) / (kWalkEf[1] - kWalkEf[0]);
    return std::max(low + slope * (static_cast<double>(ef) - kWalkEf[0]), low / 2);
}

double FormModel::scan_ns(uint32_t k, uint32_t batch) const
{
    uint32_t i = 0;
    while (i + 1 < kScans && kScanK[i] < k)
        i++;
    return scan_[i][batch];
}

SearchForm FormModel::choose(uint32_t ef, uint32_t k) const
{
    if (fixed_ != SearchForm::Auto)
        return fixed_;
    double ratio = 0;
    for (uint32_t b = 0; b < kReferenceBatches; b++)
        ratio += std::log(scan_ns(k, b) / walk_ns(ef, b));
    return ratio <= 0 ? SearchForm::Exact : SearchForm::Graph;
}

uint32_t FormModel::exact_from(uint32_t k) const
{
    /* Walks take longer as ef rises, so the choice changes once. */
    uint32_t low = std::max(k, 1u), high = std::max(kMostEf, low);
    if (choose(high, k) != SearchForm::Exact)
        return 0;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (choose(middle, k) == SearchForm::Exact)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

void FormModel::times(uint32_t ef, uint32_t k, float *exact_us, float *graph_us) const
{
    for (uint32_t b = 0; b < kReferenceBatches; b++) {
        bool known = fixed_ == SearchForm::Auto;
        exact_us[b] = known ? static_cast<float>(scan_ns(k, b) / 1000) : 0;
        graph_us[b] = known ? static_cast<float>(walk_ns(ef, b) / 1000) : 0;
    }
}

bool FormModel::outgrown(uint32_t nodes) const
{
    if (fixed_ != SearchForm::Auto)
        return true;
    return nodes / 2 > nodes_ || nodes < nodes_ / 2;
}

} // namespace vecgpu
