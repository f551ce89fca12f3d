/*
 * loader.h: LoadBegin, LoadWrite, LoadEnd: from a session's staging memory into a mirror.
 */
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "engine/lane.h"
#include "engine/mirrors.h"
#include "engine/staging.h"

namespace vecgpu {

class Loader {
public:
    Loader(const Devices &devices, Mirrors &mirrors, StagingTable &staging)
        : devices_(devices), mirrors_(mirrors), staging_(staging)
    {
    }

    /* What one thread needs; nobody else uses it. */
    struct Worker {
        std::unordered_map<const OpenDevice *, Stream> streams;
        std::vector<Run> runs;
        std::vector<float> row;
        std::vector<uint8_t> rows; /* converted */
    };

    /* `payload` is the slot's: read once. Texts go to response->message. */
    Status begin(CallClock &clock, uint32_t session, const LoadBeginRequest &request, const uint8_t *payload,
                 Response *response);
    Status write(Worker &worker, CallClock &clock, uint32_t session, const LoadWriteRequest &request, const uint8_t *payload,
                 Response *response);
    /* A write was given up, done or not: the session may have put other bytes into its staging memory meanwhile. */
    void spoil(uint32_t session, const LoadWriteRequest &request);
    Status end(Worker &worker, CallClock &clock, uint32_t session, const LoadEndRequest &request, Response *response);

private:
    Status stream(Worker &worker, OpenDevice &device, DeviceStream **stream, char *error);
    Status write_runs(Worker &worker, CallClock &clock, Load &load, uint32_t session, const LoadWriteRequest &request,
                      const uint8_t *payload, char *error);
    Status write_run(Worker &worker, CallClock &clock, Load &load, const Staging &staging, const Run &run, char *error);
    Status write_converted(Worker &worker, CallClock &clock, Load &load, uint32_t first, uint32_t count,
                           const uint8_t *rows, char *error);
    Status write_records(Worker &worker, CallClock &clock, Load &load, Region region, uint32_t first, uint32_t count,
                         const void *records, char *error);

    void keep_samples(Load &load, uint32_t first, uint32_t count, const uint8_t *records);
    Status choose_form(DeviceStream *stream, CallClock &clock, Load &load);

    const Devices &devices_;
    Mirrors &mirrors_;
    StagingTable &staging_;
};

} // namespace vecgpu
