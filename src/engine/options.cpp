/*
 * options.cpp: see options.h.
 */
#include "engine/options.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "engine/device.h"

namespace vecgpu {

namespace {

constexpr char kUsage[] =
    "vecgpu-engine: searches vectors for the sessions of a PostgreSQL server. The server starts it.\n"
    "\n"
    "  --socket PATH         where sessions say hello\n"
    "  --slots N             requests that can be open at once (1 to 4096; 1024)\n"
    "  --memory-limit BYTES  of device memory for mirrors; 0: nine tenths of what the device has (0)\n"
    "  --device auto|host    host: do not look for a GPU (auto)\n"
    "  --generation N        how often the engine was started (1)\n"
    "  --threads N           that search on the host; 0: as many as cores, at most 16 (0)\n"
    "  --log-fd N            log lines go there, marked with their level; a line B is a heartbeat\n"
    "  --life-fd N           end when this is closed at the other end\n"
    "  --help, --version\n"
    "\n"
    "  --bench               measure the path of a request instead of serving, with\n"
    "    --clients N         clients at once; 0: 1, 16 and 64 (0)\n"
    "    --seconds N         for each number of clients (3)\n"
    "    --rows N, --dims N  of the index that is searched (10, 128)\n"
    "    --think N           microseconds that a client computes between two requests (0)\n";

bool to_number(const char *text, uint64_t least, uint64_t most, uint64_t *number)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno != 0 || *end != 0 || value < least || value > most)
        return false;
    *number = value;
    return true;
}

struct NumberFlag {
    const char *name;
    uint64_t least, most;
    void (*set)(Options *options, uint64_t value);
};

constexpr NumberFlag kNumbers[] = {
    {"--slots", 1, kMaxSlots, [](Options *o, uint64_t v) { o->slots = static_cast<uint32_t>(v); }},
    {"--memory-limit", 0, INT64_MAX, [](Options *o, uint64_t v) { o->memory_limit = v; }},
    {"--generation", 0, UINT64_MAX, [](Options *o, uint64_t v) { o->generation = v; }},
    {"--log-fd", 0, INT32_MAX, [](Options *o, uint64_t v) { o->log_fd = static_cast<int>(v); }},
    {"--life-fd", 0, INT32_MAX, [](Options *o, uint64_t v) { o->life_fd = static_cast<int>(v); }},
    {"--threads", 0, 1024, [](Options *o, uint64_t v) { o->threads = static_cast<uint32_t>(v); }},
    {"--clients", 0, 4096, [](Options *o, uint64_t v) { o->clients = static_cast<uint32_t>(v); }},
    {"--seconds", 1, 3600, [](Options *o, uint64_t v) { o->seconds = static_cast<uint32_t>(v); }},
    {"--rows", 1, 100000000, [](Options *o, uint64_t v) { o->rows = static_cast<uint32_t>(v); }},
    {"--dims", 1, kMaxDimensions, [](Options *o, uint64_t v) { o->dimensions = static_cast<uint32_t>(v); }},
    {"--think", 0, 1000000, [](Options *o, uint64_t v) { o->think_us = static_cast<uint32_t>(v); }},
};

Parsed fail(const char *format, const char *one, const char *two = "")
{
    fprintf(stderr, format, one, two);
    fprintf(stderr, " (see vecgpu-engine --help)\n");
    return Parsed::Error;
}

} // namespace

Parsed parse_options(int count, char **arguments, Options *options)
{
    for (int i = 1; i < count; i++) {
        const char *flag = arguments[i];
        if (strcmp(flag, "--help") == 0) {
            fputs(kUsage, stdout);
            return Parsed::Exit;
        }
        if (strcmp(flag, "--version") == 0) {
            printf("vecgpu-engine, protocol %u, device interface %u\n", kProtocolVersion, kDeviceAbi);
            return Parsed::Exit;
        }
        if (strcmp(flag, "--bench") == 0) {
            options->bench = true;
            continue;
        }
        const NumberFlag *number = nullptr;
        for (const NumberFlag &candidate : kNumbers)
            if (strcmp(flag, candidate.name) == 0)
                number = &candidate;
        if (number == nullptr && strcmp(flag, "--socket") != 0 && strcmp(flag, "--device") != 0)
            return fail("vecgpu-engine: unknown flag \"%s\"", flag);
        if (++i >= count)
            return fail("vecgpu-engine: %s needs a value", flag);
        const char *text = arguments[i];
        if (number != nullptr) {
            uint64_t value;
            if (!to_number(text, number->least, number->most, &value))
                return fail("vecgpu-engine: %s does not take \"%s\"", flag, text);
            number->set(options, value);
        } else if (strcmp(flag, "--socket") == 0) {
            options->socket = text;
        } else {
            if (strcmp(text, "host") != 0 && strcmp(text, "auto") != 0)
                return fail("vecgpu-engine: %s does not take \"%s\"", flag, text);
            options->host_only = strcmp(text, "host") == 0;
        }
    }
    if (options->socket.empty() && !options->bench)
        return fail("vecgpu-engine: %s must be given%s", "--socket");
    return Parsed::Run;
}

} // namespace vecgpu
