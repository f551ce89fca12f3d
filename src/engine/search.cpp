/*
 * search.cpp: see search.h.
 */
#include "engine/search.h"

#include <algorithm>
#include <cstring>

#include "engine/ending.h"
#include "engine/log.h"
#include "engine/respond.h"
#include "protocol/system.h"

namespace vecgpu {

namespace {

/* Waking an idle thread takes about this long: less work than that is not worth handing over. */
constexpr uint64_t kHandOverNs = 50000;

/* `used_ns` decides about seconds; a search need not write the shared line each time. */
constexpr uint64_t kUsedGrainNs = 20000000;

bool same_search(const Request &a, const Request &b)
{
    const SearchRequest &x = a.search, &y = b.search;
    return x.index == y.index && x.form == y.form && x.k == y.k && x.ef == y.ef && x.dimensions == y.dimensions &&
           x.filter == y.filter;
}

/* By request and mirror alone, so that all requests of a class have the same, in whatever batch they come. */
SearchForm form_of(const SearchRequest &search, const Pin &pin)
{
    if (search.form != SearchForm::Auto)
        return search.form;
    return pin.form != nullptr ? pin.form->choose(search.ef, search.k) : SearchForm::Graph;
}

uint32_t clip32(uint64_t ns)
{
    return static_cast<uint32_t>(std::min<uint64_t>(ns, UINT32_MAX));
}

} // namespace

bool SearchWork::add_worker(OpenDevice &device, char *error)
{
    Stream stream;
    if (device.open_stream(&stream, error) != Status::Ok)
        return false;
    max_batch_ = std::min(max_batch_, device.info.max_batch);
    workers_.push_back(Worker{&device, std::move(stream), {}, {}, {}, {}});
    return true;
}

const char *SearchWork::refuse(const Request &request) const
{
    const SearchRequest &search = request.search;
    if (request.op != Op::Search)
        return "this lane searches and nothing else";
    if (search.form != SearchForm::Graph && search.form != SearchForm::Exact && search.form != SearchForm::Auto)
        return "unknown form of search";
    if (search.k == 0 || search.k > kMaxHits)
        return "k out of range";
    if (search.form != SearchForm::Exact && search.ef < search.k)
        return "ef is below k";
    if (search.dimensions == 0 || search.dimensions > kMaxDimensions)
        return "dimensions out of range";
    if (search.filter != 0)
        return "unknown filter";
    return nullptr;
}

TaskQueue::SameClass SearchWork::same_class() const
{
    return same_search;
}

uint64_t SearchWork::class_hash(const Request &request) const
{
    const SearchRequest &search = request.search;
    uint64_t hash = search.index.incarnation ^ static_cast<uint64_t>(search.index.file) << 32 ^ search.index.generation;
    hash = hash * 0x9e3779b97f4a7c15ull ^ static_cast<uint64_t>(search.k) << 32 ^ search.ef;
    return hash * 0x9e3779b97f4a7c15ull ^ static_cast<uint64_t>(search.form);
}

uint32_t SearchWork::share(uint32_t queued, uint32_t idle) const
{
    if (lane_ != Lane::Host)
        return std::min(queued, max_batch_); /* a GPU has room for all of them at once */
    /* A core answers one query at a time: leave some to those who have nothing to do. */
    uint64_t fair = (queued + idle) / (idle + 1);
    uint64_t worth = kHandOverNs / std::max<uint64_t>(query_ns_.load(std::memory_order_relaxed), 1);
    return static_cast<uint32_t>(std::min<uint64_t>({queued, std::max(fair, worth), max_batch_}));
}

struct SearchWork::Batch {
    Area &area;
    Worker &worker;
    const Pin &pin;
    SearchForm form;
    BatchTimes times;
    uint64_t began_ns;
    bool first = true;
};

void SearchWork::run(uint32_t number, CallClock &clock, std::span<const Task> batch) noexcept
{
    if (workers_.empty()) {
        for (const Task &task : batch)
            respond(area_.slot[task.slot], task.claim, Status::NoDevice, nullptr);
        return;
    }
    Worker &worker = workers_[number];
    try {
        worker.tasks.clear();
        worker.queries.clear();
        const SearchRequest &common = batch.front().request.search;
        Pin pin = mirrors_.pin(common.index, *worker.device);
        const Mirror *mirror = pin.mirror.get();
        Status refused = Status::Ok;
        const char *reason = nullptr;
        if (mirror == nullptr) {
            refused = pin.absent;
        } else if (common.dimensions != mirror->shape.dimensions) {
            refused = Status::BadRequest;
            reason = "the index has other dimensions";
        } else if (common.form == SearchForm::Graph && mirror->shape.kind == IndexKind::Flat) {
            refused = Status::BadRequest;
            reason = "the index has no graph";
        }
        for (const Task &task : batch) {
            Slot &slot = area_.slot[task.slot];
            if (refused != Status::Ok) {
                respond(slot, task.claim, refused, reason);
            } else if (pin.nodes < task.request.search.least_nodes) {
                slot.response.search = {};
                slot.response.search.nodes = pin.nodes;
                slot.response.search.twins = pin.twins;
                slot.response.search.epoch = pin.epoch;
                respond(slot, task.claim, Status::Behind, nullptr);
            } else if (!slot_wanted(slot.control, task.claim)) {
                slot_finish<SharedFutex>(slot.control, task.claim);
            } else {
                worker.tasks.push_back(task);
            }
        }
        if (!worker.tasks.empty())
            search(worker, clock, pin);
    } catch (const std::exception &problem) {
        log_line(LogLevel::Warning, "a search failed: %s", problem.what());
        /* What is finished already is not there any more under its claim. */
        for (const Task &task : batch)
            if (slot_wanted(area_.slot[task.slot].control, task.claim))
                respond(area_.slot[task.slot], task.claim, Status::DeviceError, problem.what());
            else
                slot_finish<SharedFutex>(area_.slot[task.slot].control, task.claim);
    }
}

void SearchWork::search(Worker &worker, CallClock &clock, const Pin &pin)
{
    Mirror &mirror = *pin.mirror;
    OpenDevice &device = *worker.device;
    const SearchRequest &common = worker.tasks.front().request.search;
    uint32_t count = static_cast<uint32_t>(worker.tasks.size());
    worker.counts.assign(count, 0);
    worker.finished.assign(count, 0);
    for (uint32_t i = 0; i < count; i++) {
        Slot &slot = area_.slot[worker.tasks[i].slot];
        worker.queries.push_back({reinterpret_cast<const float *>(slot.payload), slot.hits, &worker.counts[i]});
    }
    BatchParams params = {};
    params.form = form_of(common, pin);
    params.k = common.k;
    params.dimensions = common.dimensions;
    /* A beam as wide as the index sees everything; no device needs to make room for more. */
    params.ef = params.form == SearchForm::Graph ? std::min(common.ef, std::max(common.k, mirror.shape.nodes)) : 0;

    Batch batch = {area_, worker, pin, params.form, {}, now_ns()};
    if (batch.began_ns > mirror.used_ns.load(std::memory_order_relaxed) + kUsedGrainNs)
        mirror.used_ns.store(batch.began_ns, std::memory_order_relaxed);

    char error[kErrorBytes] = "";
    Status status;
    auto call = [&] {
        DeviceCall inside(clock, now_ns());
        return device.api->search(worker.stream.get(), mirror.handle(), &params, worker.queries.data(), count, finish_one,
                                  &batch, &batch.times, error);
    };
    status = call();
    if (status == Status::NoMemory && mirrors_.evict_one(device, mirror.key)) {
        /* Once more, without those that were finished before the memory ended. */
        uint32_t left = 0;
        for (uint32_t i = 0; i < count; i++)
            if (!worker.finished[i]) {
                worker.tasks[left] = worker.tasks[i];
                worker.queries[left] = worker.queries[i];
                worker.queries[left].count = &worker.counts[left];
                left++;
            }
        worker.tasks.resize(left);
        worker.queries.resize(left);
        worker.finished.assign(left, 0);
        count = left;
        status = left > 0 ? call() : Status::Ok;
    }
    if (status == Status::Ok) {
        status = Status::DeviceError; /* of those that the device forgot */
        snprintf(error, sizeof error, "the device did not answer all queries");
        if (count > 0)
            learn(now_ns() - batch.began_ns, count);
    }
    for (uint32_t i = 0; i < count; i++)
        if (!worker.finished[i])
            respond(area_.slot[worker.tasks[i].slot], worker.tasks[i].claim, status, error);
    if (status == Status::DeviceLost) {
        log_line(LogLevel::Warning, "%s is lost: %s", device.info.name, error);
        end_now(Ending::DeviceLost);
    }
}

/* On the thread that called search(), or one of the device's own. */
void SearchWork::finish_one(void *context, uint32_t query)
{
    Batch &batch = *static_cast<Batch *>(context);
    Worker &worker = batch.worker;
    if (query >= worker.tasks.size() || worker.finished[query])
        return;
    worker.finished[query] = 1;
    const Task &task = worker.tasks[query];
    Slot &slot = batch.area.slot[task.slot];
    Response &response = slot.response;
    uint64_t submitted = task.request.submitted_ns;
    /* A device that times its work may know by now; else what has passed. */
    uint64_t kernel = batch.times.kernel_ns != 0 ? batch.times.kernel_ns : now_ns() - batch.began_ns;
    response.status = Status::Ok;
    response.count = std::min(worker.counts[query], task.request.search.k);
    response.search.nodes = batch.pin.nodes;
    response.search.twins = batch.pin.twins;
    response.search.form = batch.form;
    response.search.epoch = batch.pin.epoch;
    response.search.width = static_cast<uint32_t>(worker.tasks.size());
    response.search.first_of_batch = batch.first ? 1 : 0;
    response.search.queue_ns = batch.began_ns > submitted ? clip32(batch.began_ns - submitted) : 0;
    response.search.copy_ns = clip32(batch.times.copy_ns);
    response.search.kernel_ns = clip32(kernel);
    response.message[0] = 0;
    batch.first = false;
    slot_finish<SharedFutex>(slot.control, task.claim);
}

void SearchWork::learn(uint64_t ns, uint32_t queries)
{
    /* Threads may overwrite each other's update: it is a mean. */
    uint64_t mean = query_ns_.load(std::memory_order_relaxed);
    query_ns_.store(mean - mean / 8 + ns / queries / 8, std::memory_order_relaxed);
}

} // namespace vecgpu
