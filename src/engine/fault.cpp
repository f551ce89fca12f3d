/*
 * fault.cpp: see fault.h.
 */
#include "engine/fault.h"

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace vecgpu {

namespace {

constexpr const char *kOperations[] = {"create", "write", "commit", "search"};
constexpr const char *kActions[] = {"", "oom", "error", "lost", "wrong", "hang", "slow", "crash", "abort"};
constexpr useconds_t kSlowMicroseconds = 50 * 1000;
constexpr useconds_t kLookMicroseconds = 5 * 1000;

/* Index of `word` in `list`, from `first` on; -1 if it is not there. */
template <size_t N>
int find(const char *const (&list)[N], const std::string &word, int first)
{
    for (int i = first; i < int(N); i++)
        if (word == list[i])
            return i;
    return -1;
}

std::vector<std::string> split(const std::string &line)
{
    std::vector<std::string> words;
    for (size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != std::string::npos;) {
        if (line[at] == '#')
            break;
        size_t end = line.find_first_of(" \t\r", at);
        if (end == std::string::npos)
            end = line.size();
        words.push_back(line.substr(at, end - at));
        at = end;
    }
    return words;
}

bool parse_count(const std::string &word, uint64_t *count)
{
    if (word.empty() || word.size() > 18)
        return false;
    *count = 0;
    for (char c : word) {
        if (c < '0' || c > '9')
            return false;
        *count = *count * 10 + uint64_t(c - '0');
    }
    return true;
}

void die(int signal_number)
{
    /* A handler of a sanitizer or of the engine must not stand in the way: the process is to die as by a wild pointer. */
    signal(signal_number, SIG_DFL);
    raise(signal_number);
    _exit(128 + signal_number); /* the signal is blocked in this thread */
}

} // namespace

std::vector<FaultLine> parse_faults(const std::string &text, std::vector<int> *bad)
{
    std::vector<FaultLine> lines;
    int number = 0;
    for (size_t at = 0; at < text.size();) {
        size_t end = text.find('\n', at);
        if (end == std::string::npos)
            end = text.size();
        std::vector<std::string> words = split(text.substr(at, end - at));
        at = end + 1;
        number++;
        if (words.empty())
            continue;
        int operation = find(kOperations, words[0], 0);
        int action = words.size() > 1 ? find(kActions, words[1], 1) : -1;
        uint64_t count = UINT64_MAX;
        bool good = operation >= 0 && action >= 0 && words.size() <= 3 &&
                    (words.size() < 3 || parse_count(words[2], &count)) &&
                    (FaultAction(action) != FaultAction::Wrong || FaultOperation(operation) == FaultOperation::Search);
        if (good)
            lines.push_back({FaultOperation(operation), FaultAction(action), count});
        else if (bad)
            bad->push_back(number);
    }
    return lines;
}

void FaultFile::refresh()
{
    std::string text;
    int64_t stamp[3] = {0, 0, 0};
    int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        struct stat info;
        if (fstat(file, &info) == 0) {
            stamp[0] = int64_t(info.st_ino);
            stamp[1] = info.st_mtim.tv_sec;
            stamp[2] = info.st_mtim.tv_nsec;
        }
        char part[4096];
        ssize_t got;
        while ((got = read(file, part, sizeof part)) > 0)
            text.append(part, size_t(got));
        close(file);
    }
    /* The clock of a file system is coarse: two versions may have one time, but hardly the same words as well. */
    if (text == text_ && memcmp(stamp, stamp_, sizeof stamp) == 0)
        return;
    std::vector<int> bad;
    lines_ = parse_faults(text, &bad);
    text_ = std::move(text);
    memcpy(stamp_, stamp, sizeof stamp);
    for (int number : bad)
        fprintf(stderr, "vecgpu-engine: %s:%d: not a fault\n", path_.c_str(), number);
}

FaultAction FaultFile::take(FaultOperation operation)
{
    std::lock_guard guard(lock_);
    refresh();
    for (FaultLine &line : lines_) {
        if (line.operation != operation || line.count == 0)
            continue;
        if (line.count != UINT64_MAX)
            line.count--;
        return line.action;
    }
    return FaultAction::None;
}

bool FaultFile::hangs(FaultOperation operation)
{
    std::lock_guard guard(lock_);
    refresh();
    for (const FaultLine &line : lines_)
        if (line.operation == operation && line.action == FaultAction::Hang)
            return true;
    return false;
}

Status FaultFile::strike(FaultOperation operation, char *error, bool *wrong)
{
    if (wrong)
        *wrong = false;
    FaultAction action = take(operation);
    Status status = Status::Ok;
    switch (action) {
    case FaultAction::None:
        break;
    case FaultAction::OutOfMemory:
        status = Status::NoMemory;
        break;
    case FaultAction::Error:
        status = Status::DeviceError;
        break;
    case FaultAction::Lost:
        status = Status::DeviceLost;
        break;
    case FaultAction::Wrong:
        if (wrong)
            *wrong = true;
        break;
    case FaultAction::Hang:
        while (hangs(operation))
            usleep(kLookMicroseconds);
        break;
    case FaultAction::Slow:
        usleep(kSlowMicroseconds);
        break;
    case FaultAction::Crash:
        die(SIGSEGV);
        break;
    case FaultAction::Abort:
        die(SIGABRT);
        break;
    }
    if (status != Status::Ok && error)
        snprintf(error, kErrorBytes, "injected fault: %s %s", kOperations[int(operation)], kActions[int(action)]);
    return status;
}

void spoil_hits(Hit *hits, uint32_t n, uint32_t nodes)
{
    static std::atomic<uint64_t> calls{0};
    uint64_t state = calls.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15;
    auto random = [&state] { /* splitmix64 */
                             uint64_t z = state += 0x9e3779b97f4a7c15;
                             z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
                             z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
                             return z ^ (z >> 31);
    };
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits = uint32_t(random());
        switch (random() % 8) {
        case 0:
            hits[i].slot = bits; /* anywhere */
            break;
        case 1:
            hits[i].slot = nodes + bits % 64; /* just beyond */
            break;
        case 2:
            hits[i].slot = kNone;
            break;
        case 3:
            hits[i].slot = hits[bits % (i + 1)].slot; /* twice */
            break;
        case 4:
            memcpy(&hits[i].key, &bits, sizeof bits); /* infinite, not a number, any sign */
            break;
        default:
            hits[i].slot = nodes ? bits % nodes : bits; /* another row, with the key of this one */
            break;
        }
    }
}

} // namespace vecgpu
