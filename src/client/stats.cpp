/*
 * stats.cpp: see stats.h.
 *
 * The file belongs to one start of the server, which its head names: one that was left behind, or is of another layout, is replaced.
 * Who makes it holds a lock on the folder, writes it under another name and renames it, so that all sessions come to
 * the same file and nobody sees half of one. Its room is reserved on the disk before anybody writes through a mapping, where a
 * full disk would be a bus error.
 *
 * An entry belongs to the index whose key stands beside it. It is found by hashing and probing, without a lock, and claimed by
 * compare-and-swap. Two sessions may rarely claim two entries for one index, when another is freed between their looks;
 * who reads adds them up.
 */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/stats.h"

namespace vecgpu {

namespace {

constexpr char kFolder[] = "pg_stat_tmp"; /* base backups leave out what is in it */
constexpr char kFile[] = "pg_stat_tmp/vecgpu.stat";
constexpr char kNewFile[] = "pg_stat_tmp/vecgpu.stat.new";

constexpr uint32_t kStatsMagic = 0x53504756; /* "VGPS" */
constexpr uint32_t kStatsLayout = 1;
constexpr uint32_t kEntries = 1024;

constexpr uint64_t kUnusedKey = 0;
constexpr uint64_t kFreedKey = 1; /* of a database 0, so of no index: was used, and probes go on behind it */

constexpr int kLockTries = 100;
constexpr long kLockSleepUs = 1000;

struct StatsHead {
    uint32_t magic;
    uint32_t layout;
    uint32_t entries;
    int32_t postmaster;
    int64_t started;               /* of the server */
    std::atomic<uint32_t> removed; /* no longer the file that others open */
    std::atomic<uint32_t> freed;   /* how often entries were freed: what sessions remember may be another's */
};

struct StatsFile {
    alignas(64) StatsHead head;
    alignas(64) VgCounter keys[kEntries];
    VgStats stats[kEntries + 1]; /* the last: of all that found no entry */
};
static_assert(sizeof(StatsHead) == 32 && offsetof(StatsFile, stats) == 64 + 8 * kEntries);

/* Entries that this session used last. */
struct Remembered {
    uint64_t key;
    uint32_t freed;
    VgStats *stats;
};
constexpr uint32_t kRemembered = 16;

StatsFile *file = nullptr;
bool off = false;
Remembered remembered[kRemembered];

/* Of what failed, for the message. */
const char *failed_action;
int failed_errno;

enum class Opening { Done, Absent, Failed };

Opening Fail(const char *action)
{
    failed_action = action;
    failed_errno = errno;
    return Opening::Failed;
}

Opening Map(int fd, StatsFile **out)
{
    void *mapped = mmap(nullptr, sizeof(StatsFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return Fail("map");
    *out = static_cast<StatsFile *>(mapped);
    return Opening::Done;
}

/* The file of this start of the server, if it is there. */
Opening Open(StatsFile **out)
{
    int fd = BasicOpenFile(kFile, O_RDWR);
    if (fd < 0)
        return errno == ENOENT ? Opening::Absent : Fail("open");
    struct stat status;
    Opening result = Opening::Absent;
    if (fstat(fd, &status) != 0)
        result = Fail("stat");
    else if (status.st_size == static_cast<off_t>(sizeof(StatsFile)))
        result = Map(fd, out);
    close(fd);
    if (result != Opening::Done)
        return result;
    const StatsHead &head = (*out)->head;
    if (head.magic == kStatsMagic && head.layout == kStatsLayout && head.entries == kEntries &&
        head.postmaster == PostmasterPid && head.started == PgStartTime && head.removed.load() == 0)
        return Opening::Done;
    munmap(*out, sizeof(StatsFile));
    *out = nullptr;
    return Opening::Absent;
}

/* A lock that goes with the descriptor; -1 if it cannot be had soon. No query waits long for statistics. */
int LockFolder(void)
{
    int fd = BasicOpenFile(kFolder, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return -1;
    for (int i = 0; flock(fd, LOCK_EX | LOCK_NB) != 0; i++) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || i == kLockTries) {
            int error = errno;
            close(fd);
            errno = error;
            return -1;
        }
        pg_usleep(kLockSleepUs);
    }
    return fd;
}

Opening Fill(int fd)
{
    int error;
    do
        error = posix_fallocate(fd, 0, sizeof(StatsFile));
    while (error == EINTR);
    errno = error;
    if (error != 0)
        return Fail("reserve");
    StatsHead head = {kStatsMagic, kStatsLayout, kEntries, PostmasterPid, PgStartTime, {0}, {0}};
    errno = ENOSPC; /* if it is written in part */
    if (pwrite(fd, &head, sizeof(head), 0) != static_cast<ssize_t>(sizeof(head)))
        return Fail("write");
    return Opening::Done;
}

/* Under the lock of the folder. */
Opening Create(StatsFile **out)
{
    unlink(kNewFile); /* of one who died here */
    int fd = BasicOpenFilePerm(kNewFile, O_RDWR | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
    if (fd < 0)
        return Fail("create");
    Opening result = Fill(fd);
    if (result == Opening::Done)
        result = Map(fd, out);
    close(fd);
    if (result == Opening::Done && rename(kNewFile, kFile) != 0) {
        result = Fail("rename");
        munmap(*out, sizeof(StatsFile));
        *out = nullptr;
    }
    if (result != Opening::Done)
        unlink(kNewFile);
    return result;
}

/* Null if there is none (and none is made), or statistics are off. */
StatsFile *Attach(bool create)
{
    if (file != nullptr && file->head.removed.load() == 0)
        return file;
    if (off)
        return nullptr;
    /* Stays mapped if it was removed: somebody up the stack may be counting. That is rare and a third of a megabyte. */
    file = nullptr;
    memset(remembered, 0, sizeof(remembered));
    Opening result = Open(&file);
    if (result == Opening::Absent && create) {
        int lock = LockFolder();
        if (lock < 0) {
            result = Fail("lock the folder of");
        } else {
            result = Open(&file);
            if (result == Opening::Absent)
                result = Create(&file);
            close(lock);
        }
    }
    if (result == Opening::Failed) {
        off = true;
        errno = failed_errno;
        ereport(DEBUG1, (errmsg_internal("vecgpu statistics are off for this session: could not %s file \"%s\": %m",
                                         failed_action, kFile)));
    }
    return file;
}

uint64_t KeyOf(Oid index)
{
    return static_cast<uint64_t>(MyDatabaseId) << 32 | index;
}

uint32_t HashOf(uint64_t key)
{
    key = (key ^ key >> 32) * 0x9e3779b97f4a7c15;
    return static_cast<uint32_t>(key >> 40);
}

VgStats *Find(uint64_t key)
{
    uint32_t start = HashOf(key) % kEntries;
    for (;;) {
        uint32_t room = kEntries;
        uint64_t seen = kUnusedKey;
        for (uint32_t i = 0; i < kEntries; i++) {
            uint32_t at = (start + i) % kEntries;
            uint64_t found = file->keys[at].load();
            if (found == key)
                return &file->stats[at];
            if ((found == kUnusedKey || found == kFreedKey) && room == kEntries) {
                room = at;
                seen = found;
            }
            if (found == kUnusedKey)
                break;
        }
        if (room == kEntries)
            return &file->stats[kEntries];
        if (file->keys[room].compare_exchange_strong(seen, key))
            return &file->stats[room];
        /* Taken by somebody, perhaps for this very index. */
    }
}

void Add(VgCounter &counter, uint64_t value)
{
    counter.fetch_add(value, std::memory_order_relaxed);
}

uint32_t BucketOf(uint32_t width)
{
    uint32_t bucket = width < 2 ? 0 : 31 - static_cast<uint32_t>(__builtin_clz(width));
    return bucket < kWidthBuckets ? bucket : kWidthBuckets - 1;
}

} // namespace

VgStats *VgStatsOf(Oid index)
{
    if (!OidIsValid(MyDatabaseId) || Attach(true) == nullptr)
        return nullptr;
    uint64_t key = KeyOf(index);
    uint32_t freed = file->head.freed.load();
    Remembered &last = remembered[HashOf(key) % kRemembered];
    if (last.key != key || last.freed != freed || last.stats == nullptr)
        last = {key, freed, Find(key)};
    return last.stats;
}

void VgCountSearch(VgStats *stats, const Response &response, uint64_t rerank_ns, uint64_t candidates, uint64_t dropped)
{
    if (stats == nullptr)
        return;
    Add(stats->queries, 1);
    Add(stats->queue_ns, response.search.queue_ns);
    Add(stats->copy_ns, response.search.copy_ns);
    Add(stats->kernel_ns, response.search.kernel_ns);
    Add(stats->rerank_ns, rerank_ns);
    Add(stats->candidates, candidates);
    if (dropped > 0)
        Add(stats->dropped, dropped);
    if (response.search.first_of_batch != 0) {
        Add(stats->batches, 1);
        Add(stats->width_sum, response.search.width);
        Add(stats->widths[BucketOf(response.search.width)], 1);
    }
}

void VgCountFallback(Oid index, VgFallback reason)
{
    uint32_t number = static_cast<uint32_t>(reason);
    if (reason == VgFallback::None || number >= kFallbacks)
        return;
    VgStats *stats = VgStatsOf(index);
    if (stats != nullptr)
        Add(stats->fallbacks[number], 1);
}

void VgStatsRemove(void)
{
    int lock = LockFolder();
    if (lock < 0)
        return;
    StatsFile *current = nullptr;
    if (Open(&current) == Opening::Done) {
        current->head.removed.store(1);
        munmap(current, sizeof(StatsFile));
        unlink(kFile);
    }
    close(lock);
}

void VgStatsVisit(void (*visit)(const VgStatsRow &row, void *argument), void *argument)
{
    StatsFile *current = Attach(false);
    if (current == nullptr)
        return;
    for (uint32_t i = 0; i < kEntries; i++) {
        uint64_t key = current->keys[i].load();
        if (key != kUnusedKey && key != kFreedKey)
            visit({static_cast<Oid>(key >> 32), static_cast<Oid>(key), &current->stats[i]}, argument);
    }
    visit({InvalidOid, InvalidOid, &current->stats[kEntries]}, argument);
}

constexpr size_t kCounters = sizeof(VgStats) / sizeof(VgCounter);

void VgStatsAdd(const VgStatsRow &row, VgTotals *totals)
{
    const VgCounter *from = reinterpret_cast<const VgCounter *>(row.stats);
    uint64_t *to = reinterpret_cast<uint64_t *>(totals);
    for (size_t i = 0; i < kCounters; i++)
        to[i] += from[i].load(std::memory_order_relaxed);
}

void VgStatsZero(const VgStatsRow &row)
{
    VgCounter *counters = reinterpret_cast<VgCounter *>(row.stats);
    for (size_t i = 0; i < kCounters; i++)
        counters[i].store(0, std::memory_order_relaxed);
}

void VgStatsFree(const VgStatsRow &row)
{
    VgStatsZero(row);
    if (file == nullptr || row.stats < file->stats || row.stats >= file->stats + kEntries)
        return;
    uint64_t key = static_cast<uint64_t>(row.database) << 32 | row.index;
    if (file->keys[row.stats - file->stats].compare_exchange_strong(key, kFreedKey))
        file->head.freed.fetch_add(1);
}

} // namespace vecgpu
