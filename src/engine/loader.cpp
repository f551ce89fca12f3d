/*
 * loader.cpp: see loader.h.
 */
#include "engine/loader.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "core/distance.h"
#include "engine/meta.h"
#include "protocol/system.h"

namespace vecgpu {

namespace {

constexpr size_t kConvertBytes = 256 * 1024;

/* Of the rows by which the forms of a search are compared. */
constexpr size_t kSampleBytes = 1024 * 1024;

Status refuse(char *error, const char *text)
{
    snprintf(error, kErrorBytes, "%s", text);
    return Status::BadRequest;
}

} // namespace

Status Loader::begin(CallClock &clock, uint32_t session, const LoadBeginRequest &request, const uint8_t *payload,
                     Response *response)
{
    constexpr size_t kMaxPath = 1024;
    Meta meta;
    memcpy(&meta, payload, sizeof meta);
    char path[kMaxPath];
    memcpy(path, payload + sizeof meta, sizeof path);
    if (memchr(path, 0, sizeof path) == nullptr)
        return refuse(response->message, "the path is too long");
    if (request.lane != Lane::Host && request.lane != Lane::Gpu)
        return refuse(response->message, "no lane for mirrors");
    if (const char *fault = meta_fault(meta, request.index))
        return refuse(response->message, fault);
    OpenDevice *device = devices_.find(request.lane, 0);
    if (device == nullptr) {
        snprintf(response->message, kErrorBytes, "no device of this kind");
        return Status::NoDevice;
    }
    Status status = mirrors_.begin(session, request, meta, path, *device, clock, response);
    mirrors_.note_failure(request.index, *device, status);
    return status;
}

Status Loader::write(Worker &worker, CallClock &clock, uint32_t session, const LoadWriteRequest &request,
                     const uint8_t *payload, Response *response)
{
    std::shared_ptr<Load> load = mirrors_.find_load(request.load, session);
    if (load == nullptr) {
        snprintf(response->message, kErrorBytes, "no such load (any more)");
        return Status::Cold;
    }
    std::lock_guard lock(load->writing);
    load->active_ns = now_ns();
    if (load->failed != Status::Ok) {
        snprintf(response->message, kErrorBytes, "%s", load->reason);
        return load->failed;
    }
    Status status = write_runs(worker, clock, *load, session, request, payload, response->message);
    /* A load with a hole in it must never be committed. */
    if (status != Status::Ok) {
        load->failed = status;
        snprintf(load->reason, kErrorBytes, "%s", response->message);
    }
    return status;
}

Status Loader::write_runs(Worker &worker, CallClock &clock, Load &load, uint32_t session, const LoadWriteRequest &request,
                          const uint8_t *payload, char *error)
{
    if (request.runs > kMaxRuns)
        return refuse(error, "too many runs");
    worker.runs.resize(request.runs);
    if (request.runs > 0)
        memcpy(worker.runs.data(), payload, request.runs * sizeof(Run));
    std::shared_ptr<Staging> staging = staging_.find(session);
    if (staging == nullptr)
        return refuse(error, "no staging memory");
    for (const Run &run : worker.runs) {
        if (load.ended || load.cancelled) {
            snprintf(error, kErrorBytes, "the load has ended");
            return Status::Cold;
        }
        Status status = write_run(worker, clock, load, *staging, run, error);
        if (status != Status::Ok)
            return status;
    }
    return Status::Ok;
}

Status Loader::write_run(Worker &worker, CallClock &clock, Load &load, const Staging &staging, const Run &run, char *error)
{
    const MirrorShape &shape = load.mirror->shape;
    Region region = static_cast<Region>(run.region);
    bool graph = shape.kind == IndexKind::Hnsw;
    if (run.region > UINT16_MAX || (region != Region::Vectors && region != Region::Slots &&
                                    !(graph && (region == Region::Links || region == Region::Upper))))
        return refuse(error, "no such region in a mirror of this kind");
    uint64_t capacity = region == Region::Upper ? shape.upper : shape.nodes;
    if (static_cast<uint64_t>(run.first) + run.count > capacity)
        return refuse(error, "a run is beyond the mirror's records");
    uint64_t record = region_shape(region, load.source, shape.dimensions, shape.m, shape.cell_width).record_bytes;
    uint64_t bytes = record * run.count;
    if (run.offset > staging.size() || bytes > staging.size() - run.offset)
        return refuse(error, "a run is beyond the staging memory");
    if (region == Region::Vectors && run.offset % 4 != 0)
        return refuse(error, "vectors in the staging memory are not aligned");
    uint32_t first = run.first, count = run.count;
    const uint8_t *records = staging.bytes() + run.offset;
    if (region == Region::Vectors && first < load.base_nodes) {
        /* Searches read those that are committed; they are the same anyway. */
        uint32_t known = std::min(load.base_nodes - first, count);
        first += known;
        count -= known;
        records += known * record;
    }
    if (count == 0)
        return Status::Ok;
    if (region == Region::Vectors && graph)
        keep_samples(load, first, count, records);
    if (region == Region::Vectors && shape.storage != load.source)
        return write_converted(worker, clock, load, first, count, records, error);
    return write_records(worker, clock, load, region, first, count, records, error);
}

Status Loader::write_converted(Worker &worker, CallClock &clock, Load &load, uint32_t first, uint32_t count,
                               const uint8_t *rows, char *error)
{
    const MirrorShape &shape = load.mirror->shape;
    size_t from = row_bytes(load.source, shape.dimensions);
    size_t to = row_bytes(shape.storage, shape.dimensions);
    uint32_t chunk = static_cast<uint32_t>(std::max<size_t>(kConvertBytes / to, 1));
    worker.row.resize(shape.dimensions);
    worker.rows.resize(chunk * to);
    for (uint32_t done = 0; done < count;) {
        uint32_t some = std::min(chunk, count - done);
        for (uint32_t i = 0; i < some; i++, rows += from) {
            decode_row(load.source, rows, shape.dimensions, worker.row.data());
            if (encode_row(shape.storage, worker.row.data(), shape.dimensions, worker.rows.data() + i * to, nullptr) !=
                EncodeStatus::Ok) {
                mirrors_.refuse_storage(load.key, shape.storage);
                snprintf(error, kErrorBytes, "a vector does not fit into the narrower storage that memory has room for");
                return Status::Unsupported;
            }
        }
        Status status =
            write_records(worker, clock, load, Region::Vectors, first + done, some, worker.rows.data(), error);
        if (status != Status::Ok)
            return status;
        done += some;
    }
    return Status::Ok;
}

Status Loader::write_records(Worker &worker, CallClock &clock, Load &load, Region region, uint32_t first, uint32_t count,
                             const void *records, char *error)
{
    OpenDevice &device = *load.device;
    DeviceStream *stream = nullptr;
    Status status = this->stream(worker, device, &stream, error);
    if (status != Status::Ok)
        return status;
    auto call = [&] {
        DeviceCall inside(clock, now_ns());
        return device.api->mirror_write(stream, load.mirror->handle(), region, first, count, records, error);
    };
    status = call();
    if (status == Status::NoMemory && mirrors_.evict_one(device, load.key))
        status = call();
    return status;
}

void Loader::spoil(uint32_t session, const LoadWriteRequest &request)
{
    std::shared_ptr<Load> load = mirrors_.find_load(request.load, session);
    if (load == nullptr)
        return;
    std::lock_guard lock(load->writing);
    if (load->failed != Status::Ok)
        return;
    load->failed = Status::BadRequest;
    snprintf(load->reason, kErrorBytes, "a write of this load was given up");
}

Status Loader::end(Worker &worker, CallClock &clock, uint32_t session, const LoadEndRequest &request, Response *response)
{
    std::shared_ptr<Load> load = mirrors_.find_load(request.load, session);
    if (load == nullptr) {
        snprintf(response->message, kErrorBytes, "no such load (any more)");
        return Status::Cold;
    }
    std::lock_guard lock(load->writing);
    if (load->ended) {
        snprintf(response->message, kErrorBytes, "the load has ended");
        return Status::Cold;
    }
    load->ended = true;
    Status status = load->failed;
    if (status != Status::Ok)
        snprintf(response->message, kErrorBytes, "%s", load->reason);
    bool commit = request.abort == 0 && status == Status::Ok && !load->cancelled;
    if (commit) {
        DeviceStream *stream = nullptr;
        status = this->stream(worker, *load->device, &stream, response->message);
        if (status == Status::Ok) {
            DeviceCall inside(clock, now_ns());
            status = load->device->api->mirror_commit(stream, load->mirror->handle(), &load->state, response->message);
        }
        if (status == Status::Ok) {
            try {
                status = choose_form(stream, clock, *load);
            } catch (const std::bad_alloc &) {
                load->form = load->mirror->form; /* what is committed stays committed */
            }
        }
    }
    uint64_t bytes = 0;
    Status ended = mirrors_.end(load, commit && status == Status::Ok, &bytes);
    response->end.bytes = bytes;
    mirrors_.note_failure(load->key, *load->device, status);
    if (request.abort != 0)
        return Status::Ok;
    if (status == Status::Ok && ended != Status::Ok)
        snprintf(response->message, kErrorBytes, "the index was evicted meanwhile");
    return status != Status::Ok ? status : ended;
}

/* Rows from all over the index, and the last: a load that brings any row has a sample. */
void Loader::keep_samples(Load &load, uint32_t first, uint32_t count, const uint8_t *records)
{
    uint32_t dimensions = load.mirror->shape.dimensions;
    uint32_t nodes = load.state.nodes;
    size_t most = std::clamp<size_t>(kSampleBytes / (dimensions * sizeof(float)), 16, kLargestFormBatch);
    uint32_t step = std::max<uint32_t>(nodes / static_cast<uint32_t>(most), 1);
    size_t bytes = row_bytes(load.source, dimensions);
    auto keep = [&](uint32_t slot) {
        size_t at = load.samples.size();
        if (at >= (most + 1) * dimensions)
            return; /* a session that writes rows twice */
        load.samples.resize(at + dimensions);
        decode_row(load.source, records + (slot - first) * bytes, dimensions, load.samples.data() + at);
    };
    for (uint64_t slot = (static_cast<uint64_t>(first) + step - 1) / step * step; slot < static_cast<uint64_t>(first) + count; slot += step)
        keep(static_cast<uint32_t>(slot));
    if (nodes > first && nodes - first <= count)
        keep(nodes - 1);
}

/* For a mirror that has just been committed. What fails here leaves the graph; only a device that is lost fails the load. */
Status Loader::choose_form(DeviceStream *stream, CallClock &clock, Load &load)
{
    load.form = mirrors_.known_form(load);
    if (load.form != nullptr)
        return Status::Ok;
    uint32_t dimensions = load.mirror->shape.dimensions;
    uint32_t samples = static_cast<uint32_t>(load.samples.size() / dimensions);
    if (samples == 0) {
        load.form = load.mirror->form;
        return Status::Ok;
    }
    const OpenDevice &device = *load.device;
    Status status = Status::Ok;
    std::vector<Hit> hits;
    std::vector<BatchQuery> queries(kLargestFormBatch);
    std::vector<uint32_t> counts(kLargestFormBatch);
    uint32_t next = 0;
    auto run = [&](SearchForm form, uint32_t width, uint32_t batch) -> uint64_t {
        uint32_t k = form == SearchForm::Graph ? std::min(width, FormModel::kWalkK) : width;
        hits.resize(static_cast<size_t>(kLargestFormBatch) * k);
        for (uint32_t i = 0; i < batch; i++, next++)
            queries[i] = {load.samples.data() + static_cast<size_t>(next % samples) * dimensions, &hits[static_cast<size_t>(i) * k],
                          &counts[i]};
        BatchParams params = {form, k, form == SearchForm::Graph ? width : 0, dimensions, nullptr};
        uint64_t start = now_ns();
        DeviceCall inside(clock, start);
        Status ran = device.api->search(stream, load.mirror->handle(), &params, queries.data(), batch, nullptr, nullptr, nullptr, nullptr);
        if (ran == Status::DeviceLost)
            status = ran;
        return ran == Status::Ok ? std::max<uint64_t>(now_ns() - start, 1) : 0;
    };
    load.form = std::make_shared<const FormModel>(FormModel::measured(load.state.nodes, device.info.max_batch, run));
    mirrors_.remember_form(load);
    load.samples = {};
    return status;
}

Status Loader::stream(Worker &worker, OpenDevice &device, DeviceStream **stream, char *error)
{
    Stream &mine = worker.streams[&device];
    if (mine == nullptr) {
        Status status = device.open_stream(&mine, error);
        if (status != Status::Ok)
            return status;
    }
    *stream = mine.get();
    return Status::Ok;
}

} // namespace vecgpu
