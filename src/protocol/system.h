/*
 * system.h: futex, clock and pause. Linux only.
 */
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <ctime>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace vecgpu {

/* Futexes on memory that processes share. */
struct SharedFutex {
    /* Returns on a wake, a changed word, a signal or after timeout_ns. */
    static void wait(std::atomic<uint32_t> &word, uint32_t seen, int64_t timeout_ns)
    {
        timespec time = {timeout_ns / 1000000000, timeout_ns % 1000000000};
        syscall(SYS_futex, &word, FUTEX_WAIT, seen, &time, nullptr, 0);
    }

    static void wake(std::atomic<uint32_t> &word) { syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0); }
};

/* CLOCK_MONOTONIC, the same in all processes of a machine. */
inline uint64_t now_ns()
{
    timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000 + static_cast<uint64_t>(time.tv_nsec);
}

inline void cpu_pause()
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");
#endif
}

} // namespace vecgpu
