/*
 * select_test.cu: all ways of select.h against a sort on the CPU, then figures.
 *
 *   select_test            tests: sizes at block edges, ties, NaN, infinities, orders that hurt
 *   select_test --small    fewer and smaller, for compute-sanitizer; --tiny: for its racecheck
 *   select_test --bench [threshold|warp|radix]   microseconds and GB/s of the values read once, shapes of the bars
 *   select_test --hard     microseconds of inputs that hurt, against normal ones
 */
#include "select.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

using namespace vecgpu;
using namespace vecgpu::cuda;

static Machine machine;
static int failures, runs;

static const char *way_name(SelectWay way)
{
    return way == SelectWay::Threshold ? "threshold" : way == SelectWay::Warp ? "warp" : "radix";
}

static std::vector<float> values_of(const std::string &kind, uint32_t rows, uint32_t columns)
{
    std::vector<float> v(size_t(rows) * columns);
    std::mt19937 random(rows * 31 + columns);
    std::normal_distribution<float> normal;
    for (size_t i = 0; i < v.size(); i++) {
        uint32_t column = uint32_t(i % columns);
        v[i] = kind == "few"          ? float(random() % 16)
               : kind == "equal"      ? 1.f
               : kind == "descending" ? float(columns - column)
               : kind == "ascending"  ? float(column)
               : kind == "nan"        ? (random() % 3 ? NAN : normal(random))
               : kind == "all nan"    ? NAN
               : kind == "infinite"   ? (random() % 3 == 0   ? INFINITY
                                         : random() % 3 == 0 ? -INFINITY
                                                             : normal(random))
               : kind == "zeros"      ? (random() % 2 ? 0.f : -0.f)
                                      : normal(random);
    }
    return v;
}

static void test(const std::string &kind, uint32_t rows, uint32_t columns, uint32_t k)
{
    std::vector<float> v = values_of(kind, rows, columns);
    DeviceBuffer<float> values(v.size()), keys(size_t(rows) * k);
    DeviceBuffer<uint32_t> indices(size_t(rows) * k);
    check(cudaMemcpy(values.data(), v.data(), v.size() * 4, cudaMemcpyHostToDevice), "copy");
    std::vector<Word> expected(size_t(rows) * k, kNoWord);
    for (uint32_t r = 0; r < rows; r++) {
        std::vector<Word> words;
        for (uint32_t c = 0; c < columns; c++)
            if (!std::isnan(v[size_t(r) * columns + c]))
                words.push_back(word_of(v[size_t(r) * columns + c], c));
        std::sort(words.begin(), words.end());
        std::copy_n(words.begin(), std::min<size_t>(k, words.size()), expected.begin() + size_t(r) * k);
    }
    for (SelectWay way : {SelectWay::Threshold, SelectWay::Warp, SelectWay::Radix}) {
        if (way != SelectWay::Radix && k > kMaxSelect)
            continue;
        if (way == SelectWay::Radix && rows > 20)
            continue;
        SelectWorkspace workspace;
        check(cudaMemset(indices.data(), 0x55, indices.count() * 4), "fill");
        launch_select(machine, way, {values.data(), rows, columns, k, keys.data(), indices.data()}, &workspace,
                      nullptr);
        std::vector<float> got(size_t(rows) * k);
        std::vector<uint32_t> at(size_t(rows) * k);
        check(cudaMemcpy(got.data(), keys.data(), got.size() * 4, cudaMemcpyDeviceToHost), "copy");
        check(cudaMemcpy(at.data(), indices.data(), at.size() * 4, cudaMemcpyDeviceToHost), "copy");
        size_t wrong = 0, first = 0;
        for (size_t i = 0; i < got.size(); i++) {
            bool good = at[i] == slot_of_word(expected[i]) &&
                        (expected[i] == kNoWord ? std::isinf(got[i]) : order_of(got[i]) == uint32_t(expected[i] >> 32));
            if (!good && wrong++ == 0)
                first = i;
        }
        runs++;
        if (wrong) {
            failures++;
            printf("not ok %s, %s, %u x %u, k %u: %zu wrong, first at %zu: %g of %u\n", way_name(way), kind.c_str(),
                   rows, columns, k, wrong, first, got[first], at[first]);
        }
    }
}

/* Median microseconds of some calls. */
static float time_of(SelectWay way, const SelectArguments &arguments, int calls)
{
    SelectWorkspace workspace;
    cudaEvent_t begin, end;
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    std::vector<float> times;
    for (int i = 0; i < calls + 2; i++) {
        cudaEventRecord(begin);
        launch_select(machine, way, arguments, &workspace, nullptr);
        cudaEventRecord(end);
        check(cudaEventSynchronize(end), "bench");
        float ms;
        cudaEventElapsedTime(&ms, begin, end);
        if (i > 1)
            times.push_back(ms * 1e3f);
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

static void fill(DeviceBuffer<float> &values, const std::vector<float> &v)
{
    for (size_t at = 0; at < values.count(); at += v.size())
        check(cudaMemcpy(values.data() + at, v.data(), std::min(v.size(), values.count() - at) * 4,
                         cudaMemcpyHostToDevice),
              "copy");
}

static void bench(uint32_t rows, uint32_t columns, const std::string &only)
{
    DeviceBuffer<float> values(size_t(rows) * columns), keys(size_t(rows) * 1024);
    DeviceBuffer<uint32_t> indices(size_t(rows) * 1024);
    fill(values, values_of("normal", 1, 1 << 22));
    for (SelectWay way : {SelectWay::Threshold, SelectWay::Warp, SelectWay::Radix}) {
        if ((way == SelectWay::Radix && rows > 1) || (!only.empty() && only != way_name(way)))
            continue;
        printf("%u x %u, %-9s", rows, columns, way_name(way));
        for (uint32_t k : {10u, 32u, 100u, 256u, 1024u}) {
            if (way == SelectWay::Warp && k > 256 && size_t(rows) * columns > 200000000)
                continue;
            float us = time_of(way, {values.data(), rows, columns, k, keys.data(), indices.data()}, 8);
            printf(" | k %u: %.1f us, %.0f GB/s", k, us, 4e-3 * rows * columns / us);
        }
        printf("\n");
        fflush(stdout);
    }
}

/* Inputs that defeat bounds from samples, against normal ones. */
static void hard(uint32_t rows, uint32_t columns)
{
    DeviceBuffer<float> values(size_t(rows) * columns), keys(size_t(rows) * 1024);
    DeviceBuffer<uint32_t> indices(size_t(rows) * 1024);
    float normal[3] = {};
    for (const char *kind :
         {"normal", "few", "equal", "descending", "ascending", "nan", "all nan", "infinite", "zeros"}) {
        const uint32_t some = std::min(rows, std::max(1u, 4000000 / columns));
        fill(values, values_of(kind, some, columns));
        printf("%u x %u, %-10s", rows, columns, kind);
        int i = 0;
        for (uint32_t k : {10u, 100u, 1024u}) {
            SelectArguments arguments = {values.data(), rows, columns, k, keys.data(), indices.data()};
            float us = time_of(select_way(k), arguments, 5);
            if (!strcmp(kind, "normal"))
                normal[i] = us;
            printf(" | k %u: %.1f us, %.1f x", k, us, us / normal[i++]);
        }
        printf("\n");
        fflush(stdout);
    }
}

int main(int argc, char **argv)
{
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
        printf("no device\n");
        return 2;
    }
    machine = {0, properties.multiProcessorCount, properties.major, properties.sharedMemPerBlockOptin};
    std::string mode = argc > 1 ? argv[1] : "";
    try {
        if (mode == "--bench") {
            for (auto [rows, columns] : {std::pair<uint32_t, uint32_t>{1, 1000000},
                                         {100, 1000000},
                                         {1000, 10000},
                                         {10000, 1024},
                                         {10000, 16384},
                                         {10000, 100000}})
                bench(rows, columns, argc > 2 ? argv[2] : "");
            return 0;
        }
        if (mode == "--hard") {
            hard(1, 1000000);
            hard(100, 1000000);
            hard(10000, 1024);
            hard(10000, 16384);
            return 0;
        }
        if (mode == "--tiny") {
            for (const char *kind : {"normal", "equal"})
                for (uint32_t k : {10u, 100u, 1024u})
                    for (uint32_t columns : {1025u, 8193u})
                        test(kind, 2, columns, k);
            for (const char *kind : {"normal", "equal"})
                test(kind, 1, 65536, 100); /* by the whole device */
            printf("%d passed, %d failed\n", runs - failures, failures);
            return failures != 0;
        }
        const bool small = mode == "--small";
        for (const char *kind :
             {"normal", "few", "equal", "descending", "ascending", "nan", "all nan", "infinite", "zeros"})
            for (uint32_t k :
                 small ? std::vector<uint32_t>{1, 10, 100, 1024}
                       : std::vector<uint32_t>{1, 10, 31, 32, 33, 100, 128, 129, 256, 257, 512, 1024, 1025, 8192})
                for (uint32_t columns : small ? std::vector<uint32_t>{1, 1025, 8193}
                                              : std::vector<uint32_t>{1, 3, 31, 32, 33, 127, 128, 1023, 1024, 1025,
                                                                      2047, 2048, 2049, 8191, 8192, 8193, 16384, 40001})
                    test(kind, columns < 5000 ? 5 : 2, columns, k);
        if (!small) {
            test("normal", 70000, 33, 10);
            test("normal", 1, 1000003, 100);
            test("few", 1, 1000003, 1024);
            test("equal", 3, 300000, 8192);
            /* One row by the whole device, and longer than its registers hold. */
            for (const char *kind : {"normal", "few", "equal", "descending", "nan", "all nan", "infinite", "zeros"})
                for (uint32_t k : {1u, 100u, 1024u})
                    for (uint32_t columns : {65536u, 1000001u, 2200003u})
                        test(kind, 1, columns, k);
        }
    } catch (const Failure &failure) {
        printf("failed: %s\n", failure.text);
        return 1;
    }
    printf("%d passed, %d failed\n", runs - failures, failures);
    return failures != 0;
}
