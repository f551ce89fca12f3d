/*
 * soon.h: waiting for what comes about by itself. A machine with other things to do may hold up any process, and any thread, for seconds.
 */
#pragma once

#include "protocol/system.h"

#include <unistd.h>

namespace engine_test {

/* A limit for what never comes. */
constexpr int kPatienceMs = 60000;

/* Whether it comes true. For all that happens a little before or after what can be seen of it. */
template <class Condition>
bool soon(Condition condition)
{
    uint64_t until = vecgpu::now_ns() + uint64_t(kPatienceMs) * 1000000;
    while (!condition()) {
        if (vecgpu::now_ns() > until)
            return false;
        usleep(5000);
    }
    return true;
}

/* Runs it once, and again where it took longer than that: then a clock of what is tested has run out, and it shows nothing. */
template <class Attempt>
void within(uint64_t ns, Attempt attempt)
{
    uint64_t began;
    do {
        began = vecgpu::now_ns();
        attempt();
    } while (vecgpu::now_ns() >= began + ns);
}

} // namespace engine_test
