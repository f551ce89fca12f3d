/*
 * server.cpp: see server.h.
 */
#include "engine/server.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>

#include "engine/engine.h"
#include "engine/log.h"
#include "engine/sessions.h"
#include "protocol/socket.h"

namespace vecgpu {

namespace {

constexpr uint64_t kTickNs = kHeartbeatNs;
constexpr uint64_t kLogBeatTicks = 5;
constexpr uint64_t kOrphanTicks = 10;
constexpr uint64_t kHelloNs = 5000000000;
constexpr uint64_t kStallNs = 10000000000;
constexpr unsigned kStopSeconds = 2;
constexpr uint32_t kMostSessions = 65536;

sigset_t ending_signals()
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    return set;
}

uint64_t stall_limit_ns()
{
    const char *text = getenv("VECGPU_STALL_MS"); /* for tests: lower only */
    uint64_t limit = text != nullptr ? strtoull(text, nullptr, 10) * 1000000 : 0;
    return limit != 0 ? std::min(limit, kStallNs) : kStallNs;
}

class Server {
public:
    explicit Server(const Options &options) : options_(options), engine_(options), sessions_(kMostSessions) {}

    Ending run();

private:
    bool open();
    bool watch(int fd, uint32_t events);
    void loop();
    void tick();
    void accept_sessions();
    void receive(int fd);
    void hello(Session &session, const SocketPacket &packet, bool known);
    void stage(Session &session, const SocketPacket &packet, FileHandle &&memory);
    void close_session(int fd);
    void sweep_orphans();
    bool answer(const Session &session, SocketPacket packet, SocketMessage type, Status status, int pass);

    const Options &options_;
    Engine engine_;
    Sessions sessions_;
    FileHandle epoll_, listener_, signals_, reserve_;
    uint64_t stall_ns_ = stall_limit_ns();
    uint64_t next_tick_ns_ = 0;
    uint64_t ticks_ = 0;
    bool ending_ = false;
};

bool Server::watch(int fd, uint32_t events)
{
    epoll_event event = {};
    event.events = events;
    event.data.fd = fd;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

bool Server::open()
{
    sigset_t set = ending_signals();
    signals_ = FileHandle(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
    epoll_ = FileHandle(epoll_create1(EPOLL_CLOEXEC));
    reserve_ = FileHandle(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!signals_ || !epoll_ || !watch(signals_.get(), EPOLLIN)) {
        log_line(LogLevel::Warning, "could not wait for signals: %s", strerror(errno));
        return false;
    }
    if (options_.life_fd >= 0 && !watch(options_.life_fd, EPOLLIN | EPOLLRDHUP)) {
        log_line(LogLevel::Warning, "could not watch descriptor %d: %s", options_.life_fd, strerror(errno));
        return false;
    }
    int listener = -1;
    if (int error = socket_listen(options_.socket.c_str(), 1024, &listener)) {
        log_line(LogLevel::Warning, "could not listen on \"%s\": %s", options_.socket.c_str(), strerror(error));
        return false;
    }
    listener_ = FileHandle(listener);
    set_ending(&engine_.area(), options_.socket.c_str());
    return watch(listener, EPOLLIN);
}

Ending Server::run()
{
    if (options_.life_fd >= 0) {
        /* If the supervisor has died before this, its end of the pipe is closed, and the loop sees that first of all. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fcntl(options_.life_fd, F_SETFD, FD_CLOEXEC);
    }
    if (!engine_.start() || !open())
        return Ending::Failed;
    log_line(LogLevel::Log, "engine %llu serves %u slots", static_cast<unsigned long long>(options_.generation),
             options_.slots);
    loop();
    announce_ending();
    listener_.reset();
    while (sessions_.size() > 0)
        sessions_.remove(sessions_.all().begin()->first);
    /* A call of a device that does not return must not keep the process. */
    signal(SIGALRM, [](int) { _exit(static_cast<int>(Ending::Clean)); });
    alarm(kStopSeconds);
    engine_.stop();
    set_ending(nullptr, nullptr);
    return Ending::Clean;
}

void Server::loop()
{
    next_tick_ns_ = now_ns();
    while (!ending_) {
        uint64_t now = now_ns();
        if (now >= next_tick_ns_) {
            tick();
            next_tick_ns_ = std::max(next_tick_ns_ + kTickNs, now + kTickNs / 2);
            continue;
        }
        epoll_event events[64];
        int wait_ms = static_cast<int>((next_tick_ns_ - now) / 1000000 + 1);
        int count = epoll_wait(epoll_.get(), events, static_cast<int>(std::size(events)), wait_ms);
        for (int i = 0; i < count && !ending_; i++) {
            int fd = events[i].data.fd;
            if (fd == listener_.get()) {
                accept_sessions();
            } else if (fd == signals_.get()) {
                ending_ = true;
            } else if (fd == options_.life_fd) {
                char byte;
                ending_ = read(fd, &byte, 1) <= 0;
            } else {
                receive(fd);
            }
        }
    }
}

void Server::tick()
{
    uint64_t now = now_ns();
    keep_beating(now);
    if (ticks_ % kLogBeatTicks == 0)
        log_heartbeat();
    if (engine_.longest_call_ns(now) > stall_ns_) {
        log_line(LogLevel::Warning, "a call of a device has not returned for %llu ms: the engine ends",
                 static_cast<unsigned long long>(stall_ns_ / 1000000));
        end_now(Ending::Stalled);
    }
    engine_.poke();
    if (ticks_ % kOrphanTicks == 0) {
        std::vector<int> silent;
        for (const auto &[fd, session] : sessions_.all())
            if (session.id == 0 && session.connected_ns + kHelloNs < now)
                silent.push_back(fd);
        for (int fd : silent)
            close_session(fd);
        sweep_orphans();
    }
    ticks_++;
}

/* A slot in the name of nobody would never come back. Only a session that breaks the rules leaves one. */
void Server::sweep_orphans()
{
    for (uint32_t i = 0; i < engine_.slots(); i++) {
        SharedSlot &control = engine_.area().slot[i].control;
        SlotWord word = control.word.load(std::memory_order_relaxed);
        if (state_of(word) != SlotState::Free && state_of(word) != SlotState::Abandoned && !sessions_.lives(session_of(word)))
            slot_reclaim(control, session_of(word));
    }
}

void Server::accept_sessions()
{
    for (;;) {
        FileHandle socket(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
        if (!socket) {
            if (errno != EMFILE && errno != ENFILE)
                return;
            /* Without a descriptor to spare nobody could even be told so. */
            reserve_.reset();
            socket = FileHandle(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
            Session nobody;
            nobody.socket = std::move(socket);
            if (nobody.socket)
                answer(nobody, {}, SocketMessage::Welcome, Status::Full, -1);
            nobody.socket.reset();
            reserve_ = FileHandle(::open("/dev/null", O_RDONLY | O_CLOEXEC));
            return;
        }
        if (socket_check_peer(socket.get()) != 0) {
            log_line(LogLevel::Warning, "a process of another user tried to connect");
            continue;
        }
        int fd = socket.get();
        if (watch(fd, EPOLLIN | EPOLLRDHUP))
            sessions_.add(std::move(socket), now_ns());
    }
}

void Server::receive(int fd)
{
    Session *session = sessions_.find(fd);
    if (session == nullptr)
        return;
    SocketPacket packet;
    int passed = -1;
    int error = socket_take(fd, &packet, &passed);
    FileHandle memory(passed);
    if (error == EAGAIN)
        return;
    if (session->id == 0 && (error == 0 || error == EBADMSG)) {
        hello(*session, packet, error == 0 && packet.version == kProtocolVersion && packet.type == SocketMessage::Hello);
        if (session->id != 0)
            return;
    } else if (error == 0 && packet.type == SocketMessage::Staging && memory) {
        stage(*session, packet, std::move(memory));
        return;
    } else if (error != kSocketClosed) {
        log_line(LogLevel::Warning, "a session sent what is not a message: it is disconnected");
    }
    close_session(fd);
}

bool Server::answer(const Session &session, SocketPacket packet, SocketMessage type, Status status, int pass)
{
    packet.magic = kProtocolMagic;
    packet.version = kProtocolVersion;
    packet.type = type;
    packet.status = static_cast<int32_t>(status);
    packet.session = session.id;
    packet.generation = options_.generation;
    return socket_send(session.socket.get(), packet, pass) == 0;
}

/* Gives the session its number, or leaves it at 0. */
void Server::hello(Session &session, const SocketPacket &packet, bool known)
{
    SocketPacket welcome = {};
    Status status = !known ? Status::BadVersion : !sessions_.name(session) ? Status::Full : Status::Ok;
    if (status != Status::Ok) {
        answer(session, welcome, SocketMessage::Welcome, status, -1);
        return;
    }
    welcome.bytes = area_bytes(engine_.slots());
    welcome.slots = engine_.slots();
    /* If it cannot be sent the session has gone, and its end is the next event. */
    answer(session, welcome, SocketMessage::Welcome, status, engine_.area_fd());
    log_line(LogLevel::Debug, "session %u is process %u", session.id, packet.pid);
}

void Server::stage(Session &session, const SocketPacket &packet, FileHandle &&memory)
{
    SocketPacket taken = {};
    taken.bytes = packet.bytes;
    void *mapped = nullptr;
    int error = memory_map(memory.get(), packet.bytes, &mapped);
    if (error != 0) {
        Status status = error == ENOMEM ? Status::NoMemory : Status::BadRequest;
        answer(session, taken, SocketMessage::StagingTaken, status, -1);
        return;
    }
    auto staging = std::make_shared<Staging>(Mapping(mapped, packet.bytes));
    if (staging->register_with(engine_.devices()) == Status::DeviceLost) {
        log_line(LogLevel::Warning, "a device was lost");
        end_now(Ending::DeviceLost);
    }
    if (std::shared_ptr<Staging> old = engine_.staging().remove(session.id))
        engine_.janitor().bury(std::move(old));
    engine_.staging().put(session.id, std::move(staging));
    answer(session, taken, SocketMessage::StagingTaken, Status::Ok, -1);
}

void Server::close_session(int fd)
{
    Session *session = sessions_.find(fd);
    uint32_t id = session->id;
    sessions_.remove(fd); /* closing takes it out of the epoll set */
    if (id != 0)
        engine_.drop_session(id);
}

} // namespace

void prepare_process()
{
    sigset_t set = ending_signals();
    pthread_sigmask(SIG_BLOCK, &set, nullptr);
    signal(SIGPIPE, SIG_IGN);
    umask(0077);
    rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

Ending serve(const Options &options)
{
    try {
        Ending ending;
        {
            Server server(options);
            ending = server.run();
        } /* devices close here */
        alarm(0);
        return ending;
    } catch (const std::exception &problem) {
        log_line(LogLevel::Warning, "the engine failed: %s", problem.what());
        end_now(Ending::Broken);
    }
}

} // namespace vecgpu
