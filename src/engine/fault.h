/*
 * fault.h: faults of the host device, on demand, for tests of everything that stands around it.
 *
 * Off unless the environment variable VECGPU_FAULT_FILE was set when the device was opened, which nothing but a test does; then one
 * null pointer is all that a call looks at. With it, the file of that name is read at every operation, so a test changes
 * the behaviour of a running engine by writing a file. No file, or an empty one: no fault.
 *
 * Each line is `<operation> <action> [count]`; `#` begins a comment.
 *   operation  create | write | commit | search: the call of device.h that is hit
 *   action     oom     the call answers NoMemory
 *              error   DeviceError
 *              lost    DeviceLost
 *              wrong   search only: answers that look like answers: any slots, some of nodes that do not exist, some twice,
 *                      in no order, with any keys, NaN too. The number of hits stays
 *              hang    the call does not return until the file no longer has a line of this operation with hang
 *              slow    50 ms longer
 *              crash   SIGSEGV
 *              abort   SIGABRT
 *   count      how many calls are hit from when the file was written; without one: all
 * The first line that has not been used up is the one that applies. Writing the file again, even with the same words, starts the
 * counts anew. Replace it by rename() where half a file would matter. A line that cannot be read is reported on stderr, once.
 */
#pragma once

#include "engine/device.h"

#include <mutex>
#include <string>
#include <vector>

namespace vecgpu {

enum class FaultOperation : uint8_t { Create, Write, Commit, Search };
enum class FaultAction : uint8_t { None, OutOfMemory, Error, Lost, Wrong, Hang, Slow, Crash, Abort };

struct FaultLine {
    FaultOperation operation;
    FaultAction action;
    uint64_t count; /* UINT64_MAX: no end */
};

/* Lines of a fault file. What cannot be read is left out, and its line numbers (from 1) go to *bad if not null. */
std::vector<FaultLine> parse_faults(const std::string &text, std::vector<int> *bad);

/* Thread-safe. */
class FaultFile {
public:
    explicit FaultFile(const char *path) : path_(path) {}

    /* What applies to a call of `operation` now; uses it up. */
    FaultAction take(FaultOperation operation);

    /*
     * take(), and what it says: sleeps, dies, or returns the status that the call is to end with, with a sentence in *error. Ok:
     * the call goes on; then *wrong (may be null) says whether its answers are to be spoiled.
     */
    Status strike(FaultOperation operation, char *error, bool *wrong);

private:
    void refresh(); /* under the lock */
    bool hangs(FaultOperation operation);

    std::string path_;
    std::mutex lock_;
    std::string text_;
    int64_t stamp_[3] = {-1, -1, -1}; /* of text_: inode, seconds and nanoseconds of the last change */
    std::vector<FaultLine> lines_;
};

/* Turns n hits into wrong ones. Some slots are at or beyond `nodes`. Different for every call. */
void spoil_hits(Hit *hits, uint32_t n, uint32_t nodes);

} // namespace vecgpu
