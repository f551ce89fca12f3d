/*
 * options.h: the command line.
 */
#pragma once

#include <cstdint>
#include <string>

namespace vecgpu {

struct Options {
    std::string socket;
    uint32_t slots = 1024;
    uint64_t memory_limit = 0; /* of each device; 0: nine tenths of what it has */
    bool host_only = false;    /* --device host */
    uint64_t generation = 1;
    int log_fd = -1;
    int life_fd = -1;
    uint32_t threads = 0; /* of the host lane; 0: the cores, at most 16 */

    bool bench = false;
    uint32_t clients = 0; /* 0: 1, 16 and 64 one after the other */
    uint32_t seconds = 3;
    uint32_t rows = 10;
    uint32_t dimensions = 128;
    uint32_t think_us = 0; /* that a client computes between two requests */
};

enum class Parsed { Run, Exit, Error };

/* Exit: --help or --version was answered on stdout. Error: a sentence is on stderr. */
Parsed parse_options(int count, char **arguments, Options *options);

} // namespace vecgpu
