/*
 * log.h: what the engine tells the supervisor, who puts it into the server log.
 *
 * One write a line, the first character is the level; a line "B" is a heartbeat. A reader that does not read must not stop the
 * engine: a line that the pipe has no room for is lost.
 */
#pragma once

namespace vecgpu {

enum class LogLevel : char { Log = 'L', Warning = 'W', Debug = 'D' };

/* To this descriptor from now on; without a call, and with -1, to stderr in a form for people. */
void log_open(int fd);

__attribute__((format(printf, 2, 3))) void log_line(LogLevel level, const char *format, ...);

void log_heartbeat();

} // namespace vecgpu
