/*
 * session.h: the session's end of a connection: hello, staging memory, farewell.
 *
 * PostgreSQL-free, header only. Nothing here allocates or throws. Functions return 0 or an errno; EINTR only where said.
 */
#pragma once

#include "protocol/socket.h"

namespace vecgpu {

struct Connection {
    int fd = -1;
    Area *area = nullptr;
    uint64_t bytes = 0;      /* of the area */
    uint64_t generation = 0; /* of the engine */
    uint32_t session = 0;
    uint32_t slots = 0;
    Status status = Status::Ok; /* what Welcome said */
    uint32_t version = 0;       /* of the engine's protocol */
    void *staging = nullptr;
    uint64_t staging_bytes = 0;
};

inline void connection_close(Connection *connection)
{
    if (connection->staging != nullptr)
        munmap(connection->staging, connection->staging_bytes);
    if (connection->area != nullptr)
        munmap(connection->area, connection->bytes);
    if (connection->fd >= 0)
        close(connection->fd);
    *connection = Connection();
}

/* Waits for an answer, through signals, until the deadline. */
inline int connection_receive(int fd, uint64_t deadline, SocketPacket *packet, int *passed)
{
    for (;;) {
        int64_t left = static_cast<int64_t>(deadline - now_ns());
        int error = socket_receive(fd, left > 0 ? static_cast<int>(left / 1000000 + 1) : 0, packet, passed);
        if (error != EINTR && error != EAGAIN)
            return error;
        if (left <= 0)
            return ETIMEDOUT;
    }
}

/*
 * On failure the connection is closed; `status` and `version` stay for the message. EPROTO: the engine declined, for the
 * reason in `status`.
 */
inline int connection_open(Connection *connection, const char *path, int timeout_ms)
{
    *connection = Connection();
    uint64_t deadline = now_ns() + static_cast<uint64_t>(timeout_ms) * 1000000;
    int error = socket_connect(path, timeout_ms, &connection->fd);
    if (error != 0)
        return error;
    SocketPacket packet = {};
    packet.magic = kProtocolMagic;
    packet.version = kProtocolVersion;
    packet.type = SocketMessage::Hello;
    packet.pid = static_cast<uint32_t>(getpid());
    int memory = -1;
    error = socket_send(connection->fd, packet, -1);
    if (error == 0)
        error = connection_receive(connection->fd, deadline, &packet, &memory);
    Status status = Status::Ok;
    uint32_t version = 0;
    if (error == 0) {
        status = static_cast<Status>(packet.status);
        version = packet.version;
        if (version != kProtocolVersion && status == Status::Ok)
            status = Status::BadVersion;
        if (packet.type != SocketMessage::Welcome || status != Status::Ok || memory < 0 || packet.slots == 0 ||
            packet.slots > kMaxSlots || packet.bytes != area_bytes(packet.slots))
            error = EPROTO;
    }
    void *area = nullptr;
    if (error == 0)
        error = memory_map(memory, packet.bytes, &area);
    if (memory >= 0)
        close(memory);
    if (error == 0) {
        connection->area = static_cast<Area *>(area);
        connection->bytes = packet.bytes;
        connection->generation = packet.generation;
        connection->session = packet.session;
        connection->slots = packet.slots;
        if (connection->area->magic != kProtocolMagic || connection->area->version != kProtocolVersion ||
            connection->area->slots != packet.slots)
            error = EPROTO;
    }
    if (error != 0)
        connection_close(connection);
    connection->status = status;
    connection->version = version;
    return error;
}

/* Memory for bulk data, instead of what was there. ENOMEM and the like leave the old one in place. */
inline int connection_stage(Connection *connection, uint64_t bytes, int timeout_ms)
{
    uint64_t deadline = now_ns() + static_cast<uint64_t>(timeout_ms) * 1000000;
    int memory = -1;
    int error = memory_create("vecgpu staging", bytes, &memory);
    if (error != 0)
        return error;
    void *mapped = nullptr;
    error = memory_map(memory, bytes, &mapped);
    if (error == 0) {
        SocketPacket packet = {};
        packet.magic = kProtocolMagic;
        packet.version = kProtocolVersion;
        packet.type = SocketMessage::Staging;
        packet.bytes = bytes;
        error = socket_send(connection->fd, packet, memory);
        int passed = -1;
        if (error == 0)
            error = connection_receive(connection->fd, deadline, &packet, &passed);
        if (passed >= 0)
            close(passed);
        if (error == 0 && packet.type != SocketMessage::StagingTaken)
            error = EPROTO;
        if (error == 0 && packet.status != static_cast<int32_t>(Status::Ok))
            error = ENOMEM;
        if (error != 0)
            munmap(mapped, bytes);
    }
    close(memory);
    if (error != 0)
        return error;
    if (connection->staging != nullptr)
        munmap(connection->staging, connection->staging_bytes);
    connection->staging = mapped;
    connection->staging_bytes = bytes;
    return 0;
}

} // namespace vecgpu
