/*
 * mirrors.cpp: see mirrors.h. What makes room for what is in budget.cpp.
 */
#include "engine/mirrors.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>

#include <sys/stat.h>

#include "engine/log.h"
#include "engine/meta.h"
#include "protocol/system.h"

namespace vecgpu {

namespace {

/* All generations of one index. */
bool same_index(const IndexKey &a, const IndexKey &b)
{
    return a.database == b.database && a.tablespace == b.tablespace && a.file == b.file && a.incarnation == b.incarnation;
}

/* The pages that `old` is of are no longer what is in the file that `now` is of. */
bool superseded(const IndexKey &old, const IndexKey &now)
{
    return old.database == now.database && old.tablespace == now.tablespace && old.file == now.file &&
           (old.incarnation != now.incarnation || old.generation < now.generation);
}

void say(char *out, const char *text)
{
    snprintf(out, kErrorBytes, "%s", text);
}

} // namespace

size_t Mirrors::KeyHash::operator()(const Key &key) const
{
    uint64_t hash = key.index.incarnation ^ static_cast<uint64_t>(key.index.file) << 32 ^ key.index.database;
    hash = (hash ^ key.index.generation ^ static_cast<uint64_t>(key.index.tablespace) << 20) * 0x9e3779b97f4a7c15ull;
    return static_cast<size_t>(hash ^ hash >> 29);
}

size_t Mirrors::FormKeyHash::operator()(const FormKey &key) const
{
    return static_cast<size_t>(key.incarnation * 0x9e3779b97f4a7c15ull) ^ static_cast<size_t>(key.storage);
}

Pin Mirrors::pin(const IndexKey &key, const OpenDevice &device)
{
    std::lock_guard lock(mutex_);
    auto found = table_.find(Key{key, &device});
    if (found != table_.end() && found->second.ready != nullptr) {
        const std::shared_ptr<Mirror> &mirror = found->second.ready;
        return {mirror, mirror->nodes, mirror->twins, mirror->epoch, mirror->form, Status::Ok};
    }
    Pin nothing;
    nothing.absent = Status::Cold;
    if (found != table_.end() && found->second.load != nullptr) {
        nothing.absent = Status::Busy;
    } else if (!failed_.empty()) {
        auto failure = failed_.find(Key{key, &device});
        if (failure != failed_.end() && now_ns() < failure->second.until_ns)
            nothing.absent = failure->second.status;
    }
    return nothing;
}

void Mirrors::note_failure(const IndexKey &key, const OpenDevice &device, Status status)
{
    if (status != Status::NoMemory && status != Status::DeviceError)
        return;
    uint64_t now = now_ns();
    std::lock_guard lock(mutex_);
    std::erase_if(failed_, [now](const auto &one) { return one.second.until_ns <= now; });
    if (failed_.size() >= 4096)
        failed_.clear(); /* nobody has so many indexes */
    failed_[Key{key, &device}] = {status, now + kFailedNs};
}

/* ---- loads ---- */

Status Mirrors::begin(uint32_t session, const LoadBeginRequest &request, const Meta &meta, const char *path,
                      OpenDevice &device, CallClock &clock, Response *response)
{
    Key key = {request.index, &device};
    auto load = std::make_shared<Load>();
    load->session = session;
    load->key = request.index;
    load->device = &device;
    load->source = meta.storage;
    load->epoch = meta.epoch;
    load->twins = meta.twins;
    load->state = state_of_meta(meta);
    load->index_oid = request.index_oid;
    load->path = path;
    load->active_ns = now_ns();
    {
        std::lock_guard lock(mutex_);
        Entry &entry = table_[key];
        const std::shared_ptr<Mirror> &ready = entry.ready;
        if (ready != nullptr && ready->epoch >= meta.epoch) {
            response->begin = {0, ready->epoch, ready->nodes, 0};
            return Status::Current;
        }
        if (entry.load != nullptr) {
            /* Its own, left behind by an error: taken over, but not while the engine still works on it. */
            bool idle = loads_.contains(entry.load->id) && entry.load.use_count() <= 2; /* held by the two tables only */
            if (entry.load->session != session || !idle) {
                say(response->message, "another session loads the index");
                return Status::Busy;
            }
            cancel(entry);
        }
        load->id = ++last_load_;
        entry.load = load;
        if (ready != nullptr && ready->nodes <= meta.nodes && shape_holds(ready->shape, meta) &&
            !storage_refused(request.index.incarnation, ready->shape.storage)) {
            load->mirror = ready;
            load->base_nodes = ready->nodes;
            loads_.emplace(load->id, load);
            response->begin = {load->id, ready->epoch, ready->nodes, 0};
            return Status::Ok;
        }
    }
    load->fresh = true;
    Status status = create(load, meta, clock, response->message);
    std::lock_guard lock(mutex_);
    if (status == Status::Ok && load->cancelled) {
        say(response->message, "the index was evicted");
        status = Status::Cold;
    }
    if (status != Status::Ok) {
        forget(load);
        if (load->mirror != nullptr)
            retired_.push_back(load->mirror);
        return status;
    }
    loads_.emplace(load->id, load);
    response->begin = {load->id, 0, 0, 0};
    return Status::Ok;
}

Status Mirrors::create(const std::shared_ptr<Load> &load, const Meta &meta, CallClock &clock, char *error)
{
    OpenDevice &device = *load->device;
    Storage storage = meta.storage;
    for (;;) {
        bool refused;
        {
            std::lock_guard lock(mutex_);
            refused = storage_refused(load->key.incarnation, storage);
        }
        MirrorShape shape = shape_with_slack(meta, storage);
        uint64_t bytes = device.api->mirror_bytes(device.handle(), &shape);
        Reservation reservation;
        if (!refused && reserve(device, load->key, bytes, &reservation)) {
            DeviceMirror *handle = nullptr;
            auto call = [&] {
                DeviceCall inside(clock, now_ns());
                return device.api->mirror_create(device.handle(), &shape, &handle, error);
            };
            Status status = call();
            if (status == Status::NoMemory && evict_one(device, load->key))
                status = call();
            if (status == Status::Ok) {
                load->mirror =
                    std::make_shared<Mirror>(device, load->key, shape, bytes, std::move(reservation), handle);
                if (storage != meta.storage)
                    log_line(LogLevel::Log, "index %u: the mirror is of narrower storage for lack of memory", load->index_oid);
                return Status::Ok;
            }
            if (status != Status::NoMemory)
                return status;
        } else {
            snprintf(error, kErrorBytes, "the mirror needs %llu bytes, %llu of %llu are taken",
                     static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(device.memory_used.load()),
                     static_cast<unsigned long long>(device.memory_limit));
        }
        Storage next = narrower(storage);
        if (next == storage)
            return Status::NoMemory;
        storage = next;
    }
}

std::shared_ptr<Load> Mirrors::find_load(uint64_t id, uint32_t session)
{
    std::lock_guard lock(mutex_);
    auto found = loads_.find(id);
    if (found == loads_.end() || found->second->session != session || found->second->cancelled)
        return nullptr;
    return found->second;
}

Status Mirrors::end(const std::shared_ptr<Load> &load, bool committed, uint64_t *bytes)
{
    std::lock_guard lock(mutex_);
    bool cancelled = load->cancelled;
    forget(load);
    if (!committed || cancelled) {
        if (load->fresh && !cancelled) /* else cancel() did it */
            retired_.push_back(load->mirror);
        return cancelled ? Status::Cold : Status::Ok;
    }
    Mirror &mirror = *load->mirror;
    Entry &entry = table_[Key{load->key, load->device}];
    if (load->fresh) {
        retire(entry.ready);
        entry.ready = load->mirror;
        mirror.used_ns = now_ns();
    } else if (entry.ready != load->mirror) {
        erase_if_empty(Key{load->key, load->device});
        return Status::Cold;
    }
    mirror.epoch = load->epoch;
    mirror.nodes = load->state.nodes;
    mirror.twins = load->twins;
    mirror.index_oid = load->index_oid;
    mirror.path = load->path;
    mirror.form = load->form;
    *bytes = mirror.bytes;
    failed_.erase(Key{load->key, load->device});
    for (auto at = table_.begin(); at != table_.end();) {
        if (at->first.device == load->device && superseded(at->first.index, load->key)) {
            cancel(at->second);
            retire(at->second.ready);
            at = table_.erase(at);
        } else {
            ++at;
        }
    }
    return Status::Ok;
}

std::shared_ptr<const FormModel> Mirrors::known_form(const Load &load)
{
    static const auto exact = std::make_shared<const FormModel>(FormModel::always(SearchForm::Exact));
    const Mirror &mirror = *load.mirror;
    uint32_t nodes = load.state.nodes;
    if (mirror.shape.kind == IndexKind::Flat || nodes <= FormModel::kTinyNodes)
        return exact;
    std::lock_guard lock(mutex_);
    if (mirror.form != nullptr && !mirror.form->outgrown(nodes))
        return mirror.form;
    auto found = forms_.find({load.key.incarnation, mirror.shape.storage, load.device});
    if (found != forms_.end() && !found->second->outgrown(nodes))
        return found->second;
    return nullptr;
}

void Mirrors::remember_form(const Load &load)
{
    std::lock_guard lock(mutex_);
    if (forms_.size() >= 4096)
        forms_.clear(); /* nobody has so many indexes */
    forms_[{load.key.incarnation, load.mirror->shape.storage, load.device}] = load.form;
}

/* Nobody finds it any more. The entry may be left empty. Under the lock. */
void Mirrors::forget(const std::shared_ptr<Load> &load)
{
    loads_.erase(load->id);
    auto found = table_.find(Key{load->key, load->device});
    if (found == table_.end() || found->second.load != load)
        return;
    found->second.load = nullptr;
    erase_if_empty(Key{load->key, load->device});
}

/* Under the lock. */
void Mirrors::cancel(Entry &entry)
{
    if (entry.load == nullptr)
        return;
    std::shared_ptr<Load> load = std::move(entry.load);
    entry.load = nullptr;
    load->cancelled = true;
    /* A fresh mirror may be set by begin() later; it looks at `cancelled` then. */
    if (loads_.erase(load->id) != 0 && load->fresh)
        retired_.push_back(load->mirror);
}

void Mirrors::drop_session(uint32_t session)
{
    std::lock_guard lock(mutex_);
    for (auto at = table_.begin(); at != table_.end();) {
        Entry &entry = at->second;
        if (entry.load != nullptr && entry.load->session == session)
            cancel(entry);
        at = entry.ready == nullptr && entry.load == nullptr ? table_.erase(at) : std::next(at);
    }
}

void Mirrors::cancel_forgotten()
{
    uint64_t now = now_ns();
    std::lock_guard lock(mutex_);
    for (auto at = table_.begin(); at != table_.end();) {
        Entry &entry = at->second;
        if (entry.load != nullptr && loads_.contains(entry.load->id) && entry.load.use_count() <= 2 &&
            entry.load->active_ns + kLoadForgottenNs < now)
            cancel(entry);
        at = entry.ready == nullptr && entry.load == nullptr ? table_.erase(at) : std::next(at);
    }
}

/* ---- eviction ---- */

/* Leaves the pointer empty. Under the lock. */
void Mirrors::retire(std::shared_ptr<Mirror> &mirror)
{
    if (mirror != nullptr)
        retired_.push_back(std::move(mirror));
    mirror = nullptr;
}

void Mirrors::erase_if_empty(const Key &key)
{
    auto found = table_.find(key);
    if (found != table_.end() && found->second.ready == nullptr && found->second.load == nullptr)
        table_.erase(found);
}

void Mirrors::sweep()
{
    std::vector<std::shared_ptr<Mirror>> dead; /* dies after the lock */
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < retired_.size();) {
        if (retired_[i].use_count() == 1) {
            dead.push_back(std::move(retired_[i]));
            retired_[i] = std::move(retired_.back());
            retired_.pop_back();
        } else {
            i++;
        }
    }
}

uint64_t Mirrors::evict(const IndexKey &key)
{
    uint64_t bytes = 0;
    {
        std::lock_guard lock(mutex_);
        for (auto at = table_.begin(); at != table_.end();) {
            if (!same_index(at->first.index, key)) {
                ++at;
                continue;
            }
            if (at->second.ready != nullptr)
                bytes += at->second.ready->bytes;
            cancel(at->second);
            retire(at->second.ready);
            at = table_.erase(at);
        }
        if (bytes > 0)
            failed_.clear(); /* there is room again */
    }
    sweep();
    return bytes;
}

void Mirrors::evict_vanished()
{
    struct Watched {
        IndexKey key;
        uint32_t index_oid;
        std::string path;
    };
    std::vector<Watched> watched;
    {
        std::lock_guard lock(mutex_);
        for (const auto &[key, entry] : table_)
            if (entry.ready != nullptr && !entry.ready->path.empty())
                watched.push_back({key.index, entry.ready->index_oid, entry.ready->path});
    }
    /* Not under the lock: a file system may take its time. */
    for (const Watched &one : watched) {
        struct stat about;
        if (stat(one.path.c_str(), &about) == 0 ? about.st_size > 0 : errno != ENOENT)
            continue;
        uint64_t bytes = evict(one.key);
        log_line(LogLevel::Debug, "index %u is gone, %llu bytes are free again", one.index_oid,
                 static_cast<unsigned long long>(bytes));
    }
}

/* ---- narrower storage ---- */

void Mirrors::refuse_storage(const IndexKey &key, Storage storage)
{
    std::lock_guard lock(mutex_);
    /* A note for convenience: forgetting it costs one load. */
    if (refused_.size() >= 4096)
        refused_.clear();
    refused_[key.incarnation] |= 1u << static_cast<uint32_t>(storage);
}

bool Mirrors::storage_refused(uint64_t incarnation, Storage storage) const
{
    auto found = refused_.find(incarnation);
    return found != refused_.end() && (found->second >> static_cast<uint32_t>(storage) & 1) != 0;
}

/* ---- what there is ---- */

uint32_t Mirrors::list(const ListRequest &request, std::span<MirrorEntry> out, uint32_t *total)
{
    uint64_t now = now_ns();
    std::vector<MirrorEntry> all;
    {
        std::lock_guard lock(mutex_);
        all.reserve(table_.size() + loads_.size());
        for (const auto &[key, entry] : table_) {
            MirrorEntry line = {};
            line.index = key.index;
            line.lane = key.device->lane;
            if (entry.ready != nullptr) {
                const Mirror &mirror = *entry.ready;
                uint64_t used = mirror.used_ns;
                line.index_oid = mirror.index_oid;
                line.phase = MirrorPhase::Ready;
                line.storage = mirror.shape.storage;
                line.epoch = mirror.epoch;
                line.nodes = mirror.nodes;
                line.bytes = mirror.bytes;
                line.idle_ns = now > used ? now - used : 0;
                if (mirror.form != nullptr) {
                    line.form = mirror.form->choose(request.ef, request.k);
                    line.exact_from = mirror.form->exact_from(request.k);
                    mirror.form->times(request.ef, request.k, line.exact_us, line.graph_us);
                }
                all.push_back(line);
            }
            /* What is in loads_ is set; before that begin() is still about it. */
            if (entry.load != nullptr && loads_.contains(entry.load->id) && entry.load->fresh) {
                const Load &load = *entry.load;
                line.index_oid = load.index_oid;
                line.phase = MirrorPhase::Loading;
                line.storage = load.mirror->shape.storage;
                line.epoch = load.epoch;
                line.nodes = load.state.nodes;
                line.bytes = load.mirror->bytes;
                line.idle_ns = 0;
                all.push_back(line);
            }
        }
    }
    /* A fixed order, so that a reader who pages does not see the table's own. */
    std::sort(all.begin(), all.end(), [](const MirrorEntry &a, const MirrorEntry &b) {
        if (a.index.database != b.index.database)
            return a.index.database < b.index.database;
        if (a.index.file != b.index.file)
            return a.index.file < b.index.file;
        if (a.index.generation != b.index.generation)
            return a.index.generation < b.index.generation;
        return a.phase < b.phase;
    });
    *total = static_cast<uint32_t>(all.size());
    uint32_t count = 0;
    for (size_t i = request.first; i < all.size() && count < out.size(); i++)
        out[count++] = all[i];
    return count;
}

uint32_t Mirrors::count(const OpenDevice &device)
{
    std::lock_guard lock(mutex_);
    uint32_t count = 0;
    for (const auto &[key, entry] : table_)
        count += key.device == &device && entry.ready != nullptr;
    return count;
}

} // namespace vecgpu
