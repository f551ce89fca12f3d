/*
 * device_sets.h: what device_bench searches: rows and queries from files or made up, as the records that mirrors take, and the graph that
 * CREATE INDEX would build over them.
 */
#pragma once

#include "core/build.h"
#include "core/distance.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace vecgpu::bench {

struct Set {
    uint32_t n = 0, dimensions = 0;
    std::vector<float> values;
    const float *at(uint32_t i) const { return values.data() + size_t(i) * dimensions; }
};

/* uint32 rows, uint32 dimensions, then bytes (.u8bin) or floats (.fbin). */
inline Set read_set(const char *path, uint32_t most)
{
    FILE *file = fopen(path, "rb");
    uint32_t head[2];
    if (!file || fread(head, 4, 2, file) != 2) {
        perror(path);
        exit(1);
    }
    Set set;
    set.n = std::min(head[0], most);
    set.dimensions = head[1];
    const size_t count = size_t(set.n) * set.dimensions;
    const std::string name = path;
    bool good;
    if (name.size() > 5 && name.substr(name.size() - 5) == ".fbin") {
        set.values.resize(count);
        good = fread(set.values.data(), sizeof(float), count, file) == count;
    } else {
        std::vector<uint8_t> bytes(count);
        good = fread(bytes.data(), 1, count, file) == count;
        set.values.assign(bytes.begin(), bytes.end());
    }
    fclose(file);
    if (!good) {
        fprintf(stderr, "%s: cut short\n", path);
        exit(1);
    }
    return set;
}

/* Rows (part 0) and queries (part 1) of the same clusters. */
inline Set make_set(uint32_t n, uint32_t dimensions, uint32_t part)
{
    constexpr uint32_t latent = 16, clusters = 10000;
    Set set;
    set.n = n;
    set.dimensions = dimensions;
    set.values.resize(size_t(n) * dimensions);
    std::vector<float> centres(clusters * latent), basis(latent * dimensions);
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    for (float &x : centres)
        x = normal(random);
    for (float &x : basis)
        x = normal(random) / 4;
    auto work = [&](uint32_t first, uint32_t last, uint32_t seed) {
        std::mt19937 own(seed);
        std::normal_distribution<float> gauss;
        for (uint32_t i = first; i < last; i++) {
            const float *centre = centres.data() + size_t(own() % clusters) * latent;
            float z[latent];
            for (uint32_t k = 0; k < latent; k++)
                z[k] = centre[k] + 0.35f * gauss(own);
            float *row = set.values.data() + size_t(i) * dimensions;
            for (uint32_t d = 0; d < dimensions; d++) {
                float sum = 0.03f * gauss(own);
                for (uint32_t k = 0; k < latent; k++)
                    sum += z[k] * basis[k * dimensions + d];
                row[d] = sum;
            }
        }
    };
    std::vector<std::thread> threads;
    uint32_t parts = std::max(1u, std::thread::hardware_concurrency());
    for (uint32_t t = 0; t < parts; t++)
        threads.emplace_back(work, uint32_t(uint64_t(n) * t / parts), uint32_t(uint64_t(n) * (t + 1) / parts),
                             part * 1000 + t + 7);
    for (std::thread &thread : threads)
        thread.join();
    return set;
}

struct Encoded {
    Storage storage;
    std::vector<uint8_t> rows;
};

inline Encoded encode(const Set &set, Storage storage)
{
    Encoded encoded{storage, {}};
    size_t bytes = row_bytes(storage, set.dimensions);
    encoded.rows.resize(set.n * bytes);
    std::vector<std::thread> threads;
    uint32_t parts = std::max(1u, std::thread::hardware_concurrency());
    for (uint32_t t = 0; t < parts; t++)
        threads.emplace_back([&, t] {
            for (uint64_t i = uint64_t(set.n) * t / parts; i < uint64_t(set.n) * (t + 1) / parts; i++)
                encode_row(storage, set.at(uint32_t(i)), set.dimensions, encoded.rows.data() + i * bytes, nullptr);
        });
    for (std::thread &thread : threads)
        thread.join();
    return encoded;
}

struct OwnGraph {
    Graph graph;
    std::vector<uint32_t> links0, upper_offset, upper, owner;
    std::vector<uint8_t> levels, locks;
};

inline void build(OwnGraph *own, const Encoded &rows, uint32_t n, uint32_t dimensions, Metric metric, uint32_t m,
                  uint32_t ef_construction)
{
    constexpr uint64_t seed = 42;
    own->graph = graph_make(m);
    uint64_t records = graph_count_records(seed, m, 0, n);
    own->links0.resize(size_t(n) * 2 * m);
    own->upper.resize(records * m);
    own->upper_offset.resize(n);
    own->levels.resize(n);
    own->locks.resize(n);
    own->graph.links0 = own->links0.data();
    own->graph.upper = own->upper.data();
    own->graph.upper_offset = own->upper_offset.data();
    own->graph.levels = own->levels.data();
    own->graph.locks = own->locks.data();
    graph_add_nodes(&own->graph, seed, n);
    BuildParams params = {
        metric, rows.storage, dimensions, ef_construction, 0, std::max(1u, std::thread::hardware_concurrency()),
        true,   false};
    BuildControl control;
    if (build_graph(&own->graph, rows.rows.data(), 0, n, params, &control) != BuildStatus::Ok)
        fprintf(stderr, "build: fewer threads\n");
    own->owner.resize(records);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t l = 0; l < own->levels[i]; l++)
            own->owner[own->upper_offset[i] + l] = i;
}

/* What `build` leaves, as bytes of this machine. False: no such file. */
inline bool read_graph(OwnGraph *own, const char *path, uint32_t n, uint32_t m)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        return false;
    uint32_t head[5];
    bool good = fread(head, sizeof head, 1, file) == 1 && head[0] == n && head[1] == m;
    auto read = [&](auto &list, size_t count) {
        list.resize(count);
        good = good && fread(list.data(), sizeof list[0], count, file) == count;
    };
    own->graph = graph_make(m);
    if (good) {
        own->graph.entry = head[2];
        own->graph.entry_level = int(head[3]);
        read(own->links0, size_t(n) * 2 * m);
        read(own->upper_offset, n);
        read(own->levels, n);
        read(own->owner, head[4]);
    }
    fclose(file);
    if (!good) {
        fprintf(stderr, "%s: not the graph of these rows\n", path);
        exit(1);
    }
    return true;
}

inline void write_graph(const OwnGraph &own, const char *path, uint32_t n, uint32_t m)
{
    FILE *file = fopen(path, "wb");
    uint32_t head[5] = {n, m, own.graph.entry, uint32_t(own.graph.entry_level), uint32_t(own.owner.size())};
    bool good = file && fwrite(head, sizeof head, 1, file) == 1;
    auto write = [&](const auto &list) {
        good = good && fwrite(list.data(), sizeof list[0], list.size(), file) == list.size();
    };
    write(own.links0);
    write(own.upper_offset);
    write(own.levels);
    write(own.owner);
    if (!file || fclose(file) != 0 || !good) {
        perror(path);
        exit(1);
    }
}

} // namespace vecgpu::bench
