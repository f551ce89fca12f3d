/* hash_bench.h: figures of the hash tables; `part`: shared, global, or all if it is empty. */
#pragma once

#include <string>

void hash_bench(const std::string &part, int processors);
