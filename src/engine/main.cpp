/*
 * main.cpp: vecgpu-engine.
 */
#include "engine/bench.h"
#include "engine/log.h"
#include "engine/options.h"
#include "engine/server.h"

int main(int count, char **arguments)
{
    using namespace vecgpu;
    Options options;
    switch (parse_options(count, arguments, &options)) {
        case Parsed::Exit:
            return static_cast<int>(Ending::Clean);
        case Parsed::Error:
            return static_cast<int>(Ending::Usage);
        case Parsed::Run:
            break;
    }
    log_open(options.log_fd);
    prepare_process();
    if (options.bench)
        return bench(options);
    return static_cast<int>(serve(options));
}
