/*
 * test.h: the least that a unit test needs. TEST names a check, CHECK counts it; finish() prints the sum.
 *
 * A test is one `ok` / `not ok` line, however many CHECKs it holds; the first five failures of a test are shown.
 */
#pragma once

#include <cinttypes>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace test {

struct State {
    int passed = 0, failed = 0;
    int shown = 0;
    bool bad = false;
    char name[128] = "";
};
inline State state;

inline void end_test()
{
    if (!state.name[0])
        return;
    if (state.bad)
        state.failed++;
    else
        state.passed++;
    printf("%s %d - %s\n", state.bad ? "not ok" : "ok", state.passed + state.failed, state.name);
    fflush(stdout);
    state.name[0] = 0;
}

inline void begin_test(const char *name)
{
    end_test();
    snprintf(state.name, sizeof state.name, "%s", name);
    state.bad = false;
    state.shown = 0;
}

__attribute__((format(printf, 4, 5))) inline void check(bool good, const char *file, int line, const char *format, ...)
{
    if (good)
        return;
    state.bad = true;
    if (state.shown++ >= 5)
        return;
    printf("# %s:%d: ", file, line);
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

__attribute__((format(printf, 1, 2))) inline void note(const char *format, ...)
{
    printf("# ");
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
}

inline int finish()
{
    end_test();
    printf("%d passed, %d failed\n", state.passed, state.failed);
    return state.failed ? 1 : 0;
}

/* splitmix64: small, the same everywhere. */
struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed) {}
    uint64_t next()
    {
        uint64_t z = (state += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        return z ^ (z >> 31);
    }
    uint32_t below(uint32_t n) { return uint32_t((next() >> 32) * n >> 32); }
    float uniform() { return float(next() >> 40) * 0x1p-24f; }                   /* [0, 1) */
    float symmetric() { return uniform() * 2 - 1; }                              /* [-1, 1) */
    float normal() { return uniform() + uniform() + uniform() + uniform() - 2; } /* bell-shaped enough */
};

} // namespace test

#define TEST(name) test::begin_test(name)
#define CHECK(condition, ...) test::check(bool(condition), __FILE__, __LINE__, __VA_ARGS__)
