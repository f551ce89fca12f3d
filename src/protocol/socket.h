/*
 * socket.h: the socket and the memory that a session and the engine share.
 *
 * PostgreSQL-free, header only, for both sides. Nothing here allocates or throws; every function returns 0 or an errno.
 *
 * Memory that a peer sends is mapped only if it is sealed against shrinking: else the peer could cut it and every
 * access beyond its new end would be a SIGBUS.
 */
#pragma once

#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "protocol/message.h"
#include "protocol/system.h"

namespace vecgpu {

/* The other end of a closed connection. */
constexpr int kSocketClosed = EPIPE;

inline int socket_address(const char *path, sockaddr_un *address)
{
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof address->sun_path)
        return ENAMETOOLONG;
    memcpy(address->sun_path, path, length);
    return 0;
}

/* The process at the other end runs as the same user as this one; anybody else gets EACCES. */
inline int socket_check_peer(int fd)
{
    ucred peer;
    socklen_t size = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return errno;
    return peer.uid == geteuid() ? 0 : EACCES;
}

/* The file of an engine that died is in the way and goes. The umask of the process decides who may connect. */
inline int socket_listen(const char *path, int backlog, int *fd)
{
    sockaddr_un address;
    if (int error = socket_address(path, &address))
        return error;
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return errno;
    unlink(path);
    if (bind(listener, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 || listen(listener, backlog) != 0) {
        int error = errno;
        close(listener);
        return error;
    }
    *fd = listener;
    return 0;
}

/* A relative path starts at the working directory: both sides stand in the data directory. */
inline int socket_connect(const char *path, int timeout_ms, int *fd)
{
    sockaddr_un address;
    if (int error = socket_address(path, &address))
        return error;
    int connection = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection < 0)
        return errno;
    /* A full backlog makes connect() wait, for so long at most. */
    timeval limit = {timeout_ms / 1000, timeout_ms % 1000 * 1000};
    int error = 0;
    if (setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
        error = errno;
    uint64_t deadline = now_ns() + static_cast<uint64_t>(timeout_ms) * 1000000;
    while (error == 0 && connect(connection, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0) {
        if (errno == EAGAIN)
            error = ETIMEDOUT;
        else if (errno != EINTR)
            error = errno;
        else if (now_ns() >= deadline)
            error = ETIMEDOUT;
    }
    if (error == 0)
        error = socket_check_peer(connection);
    if (error != 0) {
        close(connection);
        return error;
    }
    *fd = connection;
    return 0;
}

/* Hands `pass` over with the packet unless it is negative. EAGAIN: the other side does not read. */
inline int socket_send(int fd, const SocketPacket &packet, int pass)
{
    iovec part = {const_cast<SocketPacket *>(&packet), sizeof packet};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (pass >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &pass, sizeof(int));
    }
    for (;;) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
        if (sent == static_cast<ssize_t>(sizeof packet))
            return 0;
        if (sent >= 0)
            return EMSGSIZE;
        if (errno != EINTR)
            return errno;
    }
}

/*
 * Takes one packet that is there. *passed is a descriptor that came with it, or -1; a second one is closed. EAGAIN: nothing
 * there; kSocketClosed: the peer has gone; EBADMSG: not a packet of ours.
 */
inline int socket_take(int fd, SocketPacket *packet, int *passed)
{
    *passed = -1;
    iovec part = {packet, sizeof *packet};
    alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    ssize_t got;
    do
        got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return errno == ECONNRESET ? kSocketClosed : errno;
    for (cmsghdr *header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int received;
            memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
            if (*passed < 0)
                *passed = received;
            else
                close(received);
        }
    }
    int error = 0;
    if (got == 0)
        error = kSocketClosed; /* or an empty packet, which nobody sends */
    else if (got != static_cast<ssize_t>(sizeof *packet) || (message.msg_flags & MSG_TRUNC) ||
             packet->magic != kProtocolMagic)
        error = EBADMSG;
    if (error != 0 && *passed >= 0) {
        close(*passed);
        *passed = -1;
    }
    return error;
}

/* Waits for a packet. ETIMEDOUT: none came; EINTR: a signal came, and the caller decides what that means. */
inline int socket_receive(int fd, int timeout_ms, SocketPacket *packet, int *passed)
{
    pollfd one = {fd, POLLIN, 0};
    int ready = poll(&one, 1, timeout_ms);
    if (ready < 0)
        return errno;
    if (ready == 0)
        return ETIMEDOUT;
    return socket_take(fd, packet, passed);
}

/* Whether the peer has closed the connection; costs a system call. Only where no packet is due. */
inline bool socket_is_closed(int fd)
{
    pollfd one = {fd, POLLIN | POLLRDHUP, 0};
    return poll(&one, 1, 0) > 0 && (one.revents & (POLLHUP | POLLRDHUP | POLLERR | POLLNVAL)) != 0;
}

/* Memory for a peer: of this size for ever. Takes room only where it is written. */
inline int memory_create(const char *name, size_t bytes, int *fd)
{
    int memory = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory < 0)
        return errno;
    if (ftruncate(memory, static_cast<off_t>(bytes)) != 0 ||
        fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        int error = errno;
        close(memory);
        return error;
    }
    *fd = memory;
    return 0;
}

/* Maps `bytes` of a descriptor that a peer sent. EPERM: it could shrink; EINVAL: it is smaller. */
inline int memory_map(int fd, uint64_t bytes, void **memory)
{
    struct stat about;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return EPERM;
    if (fstat(fd, &about) != 0)
        return errno;
    if (bytes == 0 || bytes > static_cast<uint64_t>(about.st_size))
        return EINVAL;
    void *mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED)
        return errno;
    *memory = mapped;
    return 0;
}

} // namespace vecgpu
