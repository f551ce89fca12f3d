/*
 * faults.cpp: fault injection (engine/fault.h), by its parts and through the host device; memory of its streams.
 */
#include "parity.h"

#include "engine/fault.h"
#include "engine/host_device.h"
#include "engine/host_search.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <new>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

/* More is asked of the system than there is. */
extern "C" const char *__asan_default_options()
{
    return "allocator_may_return_null=1";
}
extern "C" const char *__tsan_default_options()
{
    return "allocator_may_return_null=1";
}

namespace parity {

static std::string fault_path()
{
    const char *folder = getenv("TMPDIR");
    return std::string(folder ? folder : "/tmp") + "/vecgpu_parity_faults." + std::to_string(getpid());
}

static void set_faults(const std::string &text)
{
    std::string path = fault_path(), other = path + ".new";
    FILE *file = fopen(other.c_str(), "w");
    fputs(text.c_str(), file);
    fclose(file);
    rename(other.c_str(), path.c_str());
}

static void test_parsing()
{
    TEST("faults: lines");
    std::vector<int> bad;
    std::vector<FaultLine> lines = parse_faults("# nothing\n\nsearch oom\n  write\terror 3 # three\r\ncommit lost 0\n"
                                                "create abort 999999999999\nsearch wrong 2",
                                                &bad);
    CHECK(bad.empty() && lines.size() == 5, "%zu lines, %zu bad", lines.size(), bad.size());
    auto is = [&](size_t i, FaultOperation operation, FaultAction action, uint64_t count) {
        CHECK(i < lines.size() && lines[i].operation == operation && lines[i].action == action &&
                  lines[i].count == count,
              "line %zu", i);
    };
    is(0, FaultOperation::Search, FaultAction::OutOfMemory, UINT64_MAX);
    is(1, FaultOperation::Write, FaultAction::Error, 3);
    is(2, FaultOperation::Commit, FaultAction::Lost, 0);
    is(3, FaultOperation::Create, FaultAction::Abort, 999999999999);
    is(4, FaultOperation::Search, FaultAction::Wrong, 2);
    lines = parse_faults("search\nsearch nothing\nfind oom\nsearch oom x\nsearch oom -1\nsearch oom 1 2\nwrite wrong\n"
                         "search oom 99999999999999999999\nsearch  slow\n",
                         &bad);
    CHECK(lines.size() == 1 && lines[0].action == FaultAction::Slow, "%zu lines", lines.size());
    CHECK(bad == std::vector<int>({1, 2, 3, 4, 5, 6, 7, 8}), "%zu bad lines", bad.size());
    CHECK(parse_faults("", nullptr).empty() && parse_faults("no", nullptr).empty(), "nothing");

    TEST("faults: counts, and a file that changes");
    unlink(fault_path().c_str());
    FaultFile file(fault_path().c_str());
    CHECK(file.take(FaultOperation::Search) == FaultAction::None, "no file");
    set_faults("search oom 2\nwrite slow\nsearch error 1\n");
    FaultAction expected[] = {FaultAction::OutOfMemory, FaultAction::OutOfMemory, FaultAction::Error,
                              FaultAction::None};
    for (FaultAction action : expected) {
        CHECK(file.take(FaultOperation::Search) == action, "in turn");
        CHECK(file.take(FaultOperation::Write) == FaultAction::Slow, "for ever");
        CHECK(file.take(FaultOperation::Commit) == FaultAction::None, "another operation");
    }
    set_faults("search oom 2\nwrite slow\nsearch error 1\n");
    CHECK(file.take(FaultOperation::Search) == FaultAction::OutOfMemory, "written again");
    set_faults("");
    CHECK(file.take(FaultOperation::Write) == FaultAction::None, "empty");
    set_faults("search lost\nthis is a test of lines that are not faults");
    CHECK(file.take(FaultOperation::Search) == FaultAction::Lost, "no newline at the end");
    unlink(fault_path().c_str());
    CHECK(file.take(FaultOperation::Search) == FaultAction::None, "removed");

    TEST("faults: spoiled hits");
    uint32_t beyond = 0, twice = 0, disorder = 0, changed = 0;
    for (uint32_t round = 0; round < 50; round++) {
        Hit hits[10], before[10];
        for (uint32_t i = 0; i < 10; i++)
            hits[i] = before[i] = {i, float(i)};
        spoil_hits(hits, 10, 1000);
        changed += memcmp(hits, before, sizeof hits) != 0;
        for (uint32_t i = 0; i < 10; i++) {
            beyond += hits[i].slot >= 1000;
            for (uint32_t j = 0; j < i; j++)
                twice += hits[i].slot == hits[j].slot;
            disorder += i > 0 && !(hits[i - 1].key <= hits[i].key);
        }
    }
    CHECK(beyond > 20 && twice > 20 && disorder > 20 && changed == 50,
          "%u beyond, %u twice, %u out of order, %u changed", beyond, twice, disorder, changed);
    spoil_hits(nullptr, 0, 0);
}

/* The signal that ends a process which searches. */
static int death_of(const Mirror &mirror, const Data &queries)
{
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
        DeviceStream *stream;
        Hit hit;
        uint32_t count;
        BatchQuery query = {queries.at(0), &hit, &count};
        BatchParams params = {SearchForm::Exact, 1, 1, queries.dimensions, nullptr};
        mirror.subject.api->stream_open(mirror.subject.device, &stream, nullptr);
        mirror.subject.api->search(stream, mirror.mirror, &params, &query, 1, nullptr, nullptr, nullptr, nullptr);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_device()
{
    Data rows = random_data(200, 8, 1, 0), queries = random_data(3, 8, 1, 1);
    Options options;
    options.m = 4;
    Index index = make_index(rows, options);
    const DeviceApi *api = host_device_api();
    char error[kErrorBytes];
    set_faults("search oom\nwrite oom\ncommit oom\ncreate oom\n");

    TEST("faults: none without the environment variable");
    {
        Mirror mirror(all()[0], index);
        parity::search(mirror, all()[0].stream, Search(), queries);
    }

    setenv("VECGPU_FAULT_FILE", fault_path().c_str(), 1);
    Subject subject = open_subject("host with faults", api, 0, false);
    unsetenv("VECGPU_FAULT_FILE");
    set_faults("");
    auto owned = std::make_unique<Mirror>(subject, index);
    Mirror &mirror = *owned;
    std::vector<Hits> right = parity::search(mirror, subject.stream, Search(), queries);
    Hit hits[10];
    uint32_t count;
    BatchQuery query = {queries.at(0), hits, &count};
    auto search_once = [&] {
        BatchParams params = {SearchForm::Exact, 10, 10, queries.dimensions, nullptr};
        error[0] = 0;
        count = 99;
        return api->search(subject.stream, mirror.mirror, &params, &query, 1, nullptr, nullptr, nullptr, error);
    };
    TEST("faults: statuses of every operation");
    const std::pair<const char *, Status> statuses[] = {
        {"oom", Status::NoMemory}, {"error", Status::DeviceError}, {"lost", Status::DeviceLost}};
    for (auto [word, status] : statuses) {
        set_faults(std::string("search ") + word + "\nwrite " + word + "\ncommit " + word + "\ncreate " + word);
        CHECK(search_once() == status && count == 99, "search %s", word);
        CHECK(strcmp(error, (std::string("injected fault: search ") + word).c_str()) == 0, "%s", error);
        MirrorState state = state_of(index);
        CHECK(api->mirror_commit(subject.stream, mirror.mirror, &state, error) == status, "commit %s", word);
        CHECK(api->mirror_write(subject.stream, mirror.mirror, Region::Slots, 0, 1, index.slots.data(), nullptr) ==
                  status,
              "write %s", word);
        MirrorShape shape = shape_of(index);
        DeviceMirror *none = nullptr;
        CHECK(api->mirror_create(subject.device, &shape, &none, error) == status && !none, "create %s", word);
    }
    set_faults("search error 2\n");
    CHECK(search_once() == Status::DeviceError && search_once() == Status::DeviceError && search_once() == Status::Ok,
          "two of three");
    CHECK(same(Hits(hits, hits + count), right[0]), "right again");

    TEST("faults: wrong answers");
    set_faults("search wrong\n");
    uint32_t wrong = 0;
    for (int i = 0; i < 20; i++) {
        CHECK(search_once() == Status::Ok && count == 10, "status");
        wrong += !same(Hits(hits, hits + 10), right[0]);
    }
    CHECK(wrong == 20, "%u of 20", wrong);
    set_faults("");
    CHECK(search_once() == Status::Ok && same(Hits(hits, hits + count), right[0]), "right again");

    TEST("faults: slow, hang");
    set_faults("search slow\n");
    auto start = std::chrono::steady_clock::now();
    CHECK(search_once() == Status::Ok, "slow");
    double time = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    CHECK(time >= 0.05, "%.3f s", time);
    /* It hangs as long as the file says so, and no longer: the join would not come back. */
    set_faults("write oom\nsearch hang 1\n");
    std::atomic<bool> back{false};
    std::thread hanging([&] {
        search_once();
        back = true;
    });
    usleep(300000);
    CHECK(!back.load(), "it does not hang");
    set_faults("write oom\n");
    hanging.join();
    CHECK(same(Hits(hits, hits + count), right[0]), "right after all");

    TEST("faults: death");
    set_faults("search crash\n");
    CHECK(death_of(mirror, queries) == SIGSEGV, "crash");
    set_faults("search abort\n");
    CHECK(death_of(mirror, queries) == SIGABRT, "abort");
    set_faults("");
    CHECK(death_of(mirror, queries) == 0, "none");
    unlink(fault_path().c_str());
    owned.reset();
    close_subject(&subject);
}

static void test_arena()
{
    TEST("memory of a stream: kept while it is little, given back, refused");
    SearchArena arena;
    CHECK(arena.held() == 0, "nothing yet");
    for (int round = 0; round < 3; round++) {
        char *last = nullptr;
        for (int i = 0; i < 100; i++) {
            char *some = static_cast<char *>(arena.allocate(100000));
            memset(some, i, 100000);
            CHECK(reinterpret_cast<uintptr_t>(some) % 64 == 0, "alignment");
            CHECK(!last || last[99999] == char(i - 1), "two in one place");
            last = some;
        }
        arena.reset();
    }
    size_t held = arena.held();
    CHECK(held >= 10000000 && held < 64 << 20, "%zu bytes held", held);
    memset(arena.allocate(10), 1, 10);
    CHECK(arena.held() == held, "what is held is used");
    memset(arena.allocate(size_t(70) << 20), 1, 1000);
    arena.reset();
    CHECK(arena.held() == 0, "too much to keep");
    bool refused = false;
    for (size_t bytes : {SIZE_MAX, size_t(1) << 60}) {
        try {
            arena.allocate(bytes);
        } catch (const std::bad_alloc &) {
            refused = true;
        }
        CHECK(refused, "%zu bytes", bytes);
        refused = false;
    }
    memset(arena.allocate(100), 1, 100);
}

void test_faults()
{
    test_arena();
    test_parsing();
    test_device();
}

} // namespace parity
