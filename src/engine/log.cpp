/*
 * log.cpp: see log.h.
 */
#include "engine/log.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

namespace vecgpu {

namespace {

int log_fd = -1; /* set before threads start */

void write_line(const char *line, size_t bytes)
{
    /* Shorter than PIPE_BUF, so it arrives whole or not at all. */
    ssize_t written = write(log_fd >= 0 ? log_fd : STDERR_FILENO, line, bytes);
    (void)written;
}

} // namespace

void log_open(int fd)
{
    log_fd = fd;
    if (fd >= 0) {
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
}

void log_line(LogLevel level, const char *format, ...)
{
    if (log_fd < 0 && level == LogLevel::Debug)
        return;
    char line[1024];
    size_t head;
    if (log_fd >= 0) {
        line[0] = static_cast<char>(level);
        head = 1;
    } else {
        head = static_cast<size_t>(
            snprintf(line, sizeof line, "vecgpu-engine: %s", level == LogLevel::Warning ? "warning: " : ""));
    }
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line + head, sizeof line - head - 1, format, arguments);
    va_end(arguments);
    size_t room = sizeof line - head - 2;
    size_t bytes = head + (length < 0 ? 0 : static_cast<size_t>(length) < room ? static_cast<size_t>(length) : room);
    for (size_t i = head; i < bytes; i++)
        if (line[i] == '\n')
            line[i] = ' ';
    line[bytes++] = '\n';
    write_line(line, bytes);
}

void log_heartbeat()
{
    if (log_fd >= 0)
        write_line("B\n", 2);
}

} // namespace vecgpu
