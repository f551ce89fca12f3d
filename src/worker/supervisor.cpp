/*
 * supervisor.cpp: the worker that starts the engine, writes its log and starts it again.
 *
 * The engine is a program of its own (engine/main.cpp), not attached to the server's shared memory: whatever happens to it costs a
 * restart of it and nothing else. It dies with this process: the kernel kills it (PR_SET_PDEATHSIG), and should that
 * fail it reads the end of its lifeline.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/settings.h"
#include "client/stats.h"
#include "client/supervisor.h"

namespace vecgpu {

namespace {

constexpr int kLogFd = 3, kLifeFd = 4; /* in the engine */
constexpr long kBeatMs = 3000;         /* the engine says that it lives twice a second; without it, it hangs */
constexpr long kFirstBackOffMs = 50, kLongestBackOffMs = 30000;
constexpr long kSteadyMs = 60000; /* an engine that ran so long has earned a prompt restart */
constexpr long kStopMs = 2000;    /* what it gets to end by itself */

struct Engine {
    pid_t pid;     /* 0: not running */
    int log_fd;    /* its log and heartbeat */
    int life_fd;   /* our end of the lifeline */
    TimestampTz started, beat;
    uint64_t generation;
    char line[1024]; /* what was read of the current line */
    size_t line_used;
    bool beating; /* since its start */
};

Engine engine = {0, -1, -1, 0, 0, 0, {0}, 0, false};

void CloseFd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* The child's part between fork and exec: system calls only. */
[[noreturn]] void RunEngine(const char *path, char **arguments, int log_fd, int life_fd, pid_t parent, const char *oom_file,
                            const char *oom_value)
{
    /* The engine goes when its supervisor does, stopped or not. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    /* Out of the way of the descriptors that they become. */
    log_fd = fcntl(log_fd, F_DUPFD, 16);
    life_fd = fcntl(life_fd, F_DUPFD, 16);
    dup2(log_fd, kLogFd);
    dup2(life_fd, kLifeFd);
    syscall(SYS_close_range, kLifeFd + 1, ~0U, 0);
    int null = open("/dev/null", O_RDWR);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        if (null > kLifeFd)
            close(null);
    }
    /* The kernel may kill it for memory where it must not kill the postmaster: nothing is lost. */
    if (oom_file != nullptr) {
        int oom = open(oom_file, O_WRONLY);
        if (oom >= 0) {
            ssize_t written = write(oom, oom_value, strlen(oom_value));
            (void) written;
            close(oom);
        }
    }
    for (int signal_number = 1; signal_number < NSIG; signal_number++)
        signal(signal_number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    execv(path, arguments);
    _exit(127);
}

void StartEngine(void)
{
    static char path[MAXPGPATH + 32], slots[16], memory[32], generation[32];
    snprintf(path, sizeof(path), "%s/vecgpu-engine", VgModuleFolder());
    int wanted = vg_engine_slots > 0 ? vg_engine_slots : MaxConnections + 32;
    snprintf(slots, sizeof(slots), "%d", wanted < 4096 ? wanted : 4096);
    snprintf(memory, sizeof(memory), "%llu", static_cast<unsigned long long>(vg_gpu_memory_limit) * 1024 * 1024);
    engine.generation++;
    snprintf(generation, sizeof(generation), "%llu", static_cast<unsigned long long>(engine.generation));
    static char socket[sizeof(kEngineSocket)];
    strlcpy(socket, kEngineSocket, sizeof(socket));
    const char *arguments[] = {"vecgpu-engine", "--socket",     socket,     "--slots",  slots, "--memory-limit",
                               memory,          "--generation", generation, "--device", "auto",
                               "--log-fd",      "3",            "--life-fd", "4",       nullptr};

    int log[2], life[2];
    if (pipe2(log, O_CLOEXEC) != 0)
        ereport(ERROR, (errcode_for_socket_access(), errmsg("could not create a pipe: %m")));
    if (pipe2(life, O_CLOEXEC) != 0) {
        close(log[0]);
        close(log[1]);
        ereport(ERROR, (errcode_for_socket_access(), errmsg("could not create a pipe: %m")));
    }
    fcntl(log[0], F_SETFL, O_NONBLOCK);
    const char *oom_file = getenv("PG_OOM_ADJUST_FILE");
    const char *oom_value = getenv("PG_OOM_ADJUST_VALUE");
    pid_t parent = getpid();

    sigset_t all, old;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &old);
    pid_t child = fork();
    if (child == 0)
        RunEngine(path, const_cast<char **>(arguments), log[1], life[0], parent, oom_file,
                  oom_value != nullptr ? oom_value : "0");
    sigprocmask(SIG_SETMASK, &old, nullptr);
    close(log[1]);
    close(life[0]);
    if (child < 0) {
        close(log[0]);
        close(life[1]);
        ereport(ERROR, (errmsg("could not fork the vecgpu engine: %m")));
    }
    engine.pid = child;
    engine.log_fd = log[0];
    engine.life_fd = life[1];
    engine.started = engine.beat = GetCurrentTimestamp();
    engine.line_used = 0;
    engine.beating = false;
    char activity[64];
    snprintf(activity, sizeof(activity), "engine %d, start %llu", static_cast<int>(child),
             static_cast<unsigned long long>(engine.generation));
    pgstat_report_activity(STATE_RUNNING, activity);
    ereport(DEBUG1, (errmsg("started vecgpu engine with PID %d", static_cast<int>(child))));
}

void LogLine(const char *line)
{
    int level = line[0] == 'W' ? WARNING : line[0] == 'D' ? DEBUG1 : LOG;
    if (line[0] == 'B') {
        engine.beat = GetCurrentTimestamp();
        engine.beating = true;
        return;
    }
    ereport(level, (errmsg_internal("vecgpu engine: %s", line + 1)));
}

/* Everything that the engine has said. False at the end: it is gone. */
bool ReadLog(void)
{
    for (;;) {
        ssize_t got = read(engine.log_fd, engine.line + engine.line_used, sizeof(engine.line) - 1 - engine.line_used);
        if (got == 0)
            return false;
        if (got < 0)
            return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
        engine.line_used += static_cast<size_t>(got);
        size_t start = 0;
        for (size_t i = 0; i < engine.line_used; i++) {
            if (engine.line[i] != '\n')
                continue;
            engine.line[i] = '\0';
            if (i > start)
                LogLine(engine.line + start);
            start = i + 1;
        }
        if (start == 0 && engine.line_used == sizeof(engine.line) - 1) {
            engine.line[engine.line_used] = '\0';
            LogLine(engine.line);
            start = engine.line_used;
        }
        engine.line_used -= start;
        memmove(engine.line, engine.line + start, engine.line_used);
    }
}

/* Waits for the process, which has ended or ends by itself within kStopMs, or by force. */
int ReapEngine(void)
{
    int status = 0;
    for (long waited = 0;; waited += 10) {
        pid_t done = waitpid(engine.pid, &status, WNOHANG);
        if (done == engine.pid || (done < 0 && errno == ECHILD))
            break;
        if (waited == kStopMs)
            kill(engine.pid, SIGKILL);
        pg_usleep(10000);
    }
    engine.pid = 0;
    CloseFd(&engine.log_fd);
    CloseFd(&engine.life_fd);
    return status;
}

/* Whether the server ends with us: a worker is told to stop in the same way when an administrator terminates it alone. */
bool ServerStops(void)
{
    if (!PostmasterIsAlive())
        return true;
    int fd = open("postmaster.pid", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return true;
    char text[2048];
    ssize_t got = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    const char *line = text;
    for (int i = 1; line != nullptr && i < LOCK_FILE_LINE_PM_STATUS; i++) {
        line = strchr(line, '\n');
        if (line != nullptr)
            line++;
    }
    return line != nullptr && strncmp(line, PM_STATUS_STOPPING, strlen(PM_STATUS_STOPPING)) == 0;
}

/* At the end of this process, whatever ends it. */
void StopEngine(int code, Datum argument)
{
    (void) code;
    (void) argument;
    if (engine.pid != 0) {
        kill(engine.pid, SIGTERM);
        CloseFd(&engine.life_fd);
        ReapEngine();
    }
    unlink(kEngineSocket);
    if (ServerStops())
        VgStatsRemove();
}

void ReportEnd(int status)
{
    if (WIFSIGNALED(status))
        ereport(LOG, (errmsg("vecgpu engine with signal %d: %s", WTERMSIG(status), pg_strsignal(WTERMSIG(status)))));
    else if (WEXITSTATUS(status) == 127)
        ereport(LOG, (errmsg("could not execute the vecgpu engine \"%s/vecgpu-engine\"", VgModuleFolder())));
    else
        ereport(LOG, (errmsg("vecgpu engine ended with exit code %d", WEXITSTATUS(status))));
}

void Supervise(void)
{
    long back_off = 0;
    TimestampTz start_at = 0;
    while (!ShutdownRequestPending) {
        CHECK_FOR_INTERRUPTS();
        if (ConfigReloadPending) {
            ConfigReloadPending = false;
            ProcessConfigFile(PGC_SIGHUP);
        }
        TimestampTz now = GetCurrentTimestamp();
        if (engine.pid == 0 && now >= start_at)
            StartEngine();
        long timeout = 1000;
        if (engine.pid == 0)
            timeout = TimestampDifferenceMilliseconds(now, start_at) + 1;
        int events = WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH;
        int got;
        if (engine.pid != 0)
            got = WaitLatchOrSocket(MyLatch, events | WL_SOCKET_READABLE, engine.log_fd, timeout, PG_WAIT_EXTENSION);
        else
            got = WaitLatch(MyLatch, events, timeout, PG_WAIT_EXTENSION);
        if (got & WL_LATCH_SET)
            ResetLatch(MyLatch);
        if (engine.pid == 0)
            continue;
        bool there = ReadLog();
        now = GetCurrentTimestamp();
        if (there && TimestampDifferenceExceeds(engine.beat, now, kBeatMs)) {
            ereport(LOG, (errmsg("vecgpu engine with PID %d does not answer, killing it", static_cast<int>(engine.pid))));
            kill(engine.pid, SIGKILL);
            there = false;
        }
        if (there)
            continue;
        bool steady = TimestampDifferenceExceeds(engine.started, now, kSteadyMs);
        ReportEnd(ReapEngine());
        pgstat_report_activity(STATE_IDLE, nullptr);
        /* The first restart is prompt; an engine that ends again and again is started less and less often. */
        back_off = steady || back_off == 0 ? kFirstBackOffMs : back_off * 2;
        if (back_off > kLongestBackOffMs)
            back_off = kLongestBackOffMs;
        start_at = TimestampTzPlusMilliseconds(now, back_off);
    }
}

} // namespace

} // namespace vecgpu

extern "C" PGDLLEXPORT void vecgpu_supervisor(Datum argument)
{
    using namespace vecgpu;
    (void) argument;
    pqsignal(SIGTERM, SignalHandlerForShutdownRequest);
    pqsignal(SIGHUP, SignalHandlerForConfigReload);
    pqsignal(SIGPIPE, SIG_IGN);
    BackgroundWorkerUnblockSignals();
    BackgroundWorkerInitializeConnection(nullptr, nullptr, 0);

    /* A session that looks whether we run holds the lock for an instant. */
    bool alone = false;
    for (int i = 0; i < 20 && !alone; i++) {
        if (i > 0)
            pg_usleep(5000);
        alone = VgTryLockSupervisor();
    }
    /* Nothing to do on a machine without a GPU, unless a session asks: then it starts one of us by itself. */
    bool needed = MyBgworkerEntry->bgw_restart_time == BGW_NEVER_RESTART || vg_device == kDeviceHost ||
                  (vg_device != kDeviceCpu && VgGpuModuleInstalled());
    if (!alone || !needed)
        proc_exit(0);
    before_shmem_exit(StopEngine, 0);
    Supervise();
    /* Whoever ended us with a signal wants an end, not a new start. */
    proc_exit(0);
}
