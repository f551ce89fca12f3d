/*
 * message.h: what a session and the engine say to each other.
 *
 * PostgreSQL-free. A session says Hello over a SOCK_SEQPACKET Unix socket and receives Welcome with the slot area (a memfd, by
 * SCM_RIGHTS). From then on it speaks through slots; the socket carries a Staging message with a memfd, before bulk
 * data, and its closing tells either side that the other one is gone.
 *
 * Both sides run on one machine as one user; sizes and offsets are pinned below. To change one is to raise kProtocolVersion.
 */
#pragma once

#include <cstddef>

#include "core/types.h"
#include "protocol/slot.h"

namespace vecgpu {

constexpr uint32_t kProtocolMagic = 0x45504756; /* "VGPE" */
constexpr uint32_t kProtocolVersion = 2;

/* ---- socket ---- */

enum class SocketMessage : uint32_t {
    Hello = 1,
    Welcome = 2,
    Staging = 3,       /* with a memfd: bulk data of this session; answered by StagingTaken */
    StagingTaken = 4,
};

/* Every message on the socket has this size, so that old and new versions can read each other's head. */
struct SocketPacket {
    uint32_t magic;
    uint32_t version; /* of the sender */
    SocketMessage type;
    int32_t status;       /* Welcome, StagingTaken: Status */
    uint32_t pid;         /* Hello: of the session */
    uint32_t session;     /* Welcome: goes into slot words */
    uint64_t generation;  /* Welcome: of the engine: how often it was started */
    uint64_t bytes;       /* Welcome: of the slot area; Staging: of the memfd */
    uint32_t slots;       /* Welcome */
    uint32_t unused;
};

/* ---- slots ---- */

/* Who works on a request: each lane has a doorbell and threads of its own. */
enum class Lane : uint32_t {
    Host = 0,    /* searches on the host device */
    Gpu = 1,     /* searches on a GPU */
    Control = 2, /* loads and everything else that takes long or is rare */
};
constexpr uint32_t kLanes = 3;

enum class Op : uint32_t {
    Search = 1,
    LoadBegin = 2, /* opens a mirror for writing: a new one, or one that lags behind */
    LoadWrite = 3, /* bytes from the session's staging memory into regions */
    LoadEnd = 4,   /* what was written is the state of LoadBegin's Meta from now on */
    Evict = 5,
    ListMirrors = 6,
    ListDevices = 7,
};

enum class Status : int32_t {
    Ok = 0,
    Cold = 1,        /* no mirror of this index */
    Behind = 2,      /* the mirror has fewer nodes than asked for */
    Busy = 3,        /* LoadBegin: another session loads it */
    Current = 4,     /* LoadBegin: nothing to do */
    NoMemory = 5,    /* the budget or the device has no room */
    NoDevice = 6,    /* no device of this lane */
    DeviceError = 7, /* this request failed on the device */
    DeviceLost = 8,  /* the device is gone until the engine has been started again */
    BadRequest = 9,
    Unsupported = 10,
    BadVersion = 11, /* Welcome: the other side speaks another version */
    Full = 12,       /* Welcome: no room for more sessions */
};

/* The pages that a mirror is made of. The low bits of two clusters' numbers may be equal, the incarnation is random. */
struct IndexKey {
    uint32_t database;
    uint32_t tablespace;
    uint32_t file;       /* relation file number */
    uint32_t generation; /* of the regions, Meta.generation */
    uint64_t incarnation;

    bool operator==(const IndexKey &) const = default;
};

enum class SearchForm : uint32_t {
    Graph = 1,
    Exact = 2,
    Auto = 3, /* whichever of them was measured to be faster on this mirror: the engine's choice, by ef and k */
};

/* The k nearest nodes by (key, slot). The query's floats are in the slot's payload. */
struct SearchRequest {
    IndexKey index;
    SearchForm form;
    uint32_t k;           /* 1 .. kMaxHits */
    uint32_t ef;          /* Graph, Auto: width of the beam, at least k */
    uint32_t dimensions;
    uint32_t least_nodes; /* a mirror with fewer is Behind */
    uint32_t filter;      /* 0: none; others are reserved */
};

/* Payload: a Meta (page/layout.h), then the path of the relation's file with a terminating zero. */
struct LoadBeginRequest {
    IndexKey index;
    Lane lane;
    uint32_t index_oid;
};

/*
 * Payload: `runs` Run records. A session that gives a LoadWrite up aborts the load, and writes to that staging memory no more, for the
 * engine may still be reading it: it brings another one, or disconnects.
 */
struct LoadWriteRequest {
    uint64_t load;
    uint32_t runs;
    uint32_t unused;
};

struct LoadEndRequest {
    uint64_t load;
    uint32_t abort; /* 1: drop what was written (a new mirror), or leave the old state (one that lagged) */
    uint32_t unused;
};

struct EvictRequest {
    IndexKey index; /* all of its generations */
};

struct ListRequest {
    uint32_t first; /* entries to skip */
    uint32_t ef, k; /* ListMirrors: of the search that form and times are told for */
    uint32_t unused;
};

/* Consecutive records of a region, as the pages hold them but without trailers and page ends. */
struct Run {
    uint32_t region; /* page/layout.h, Region */
    uint32_t first;  /* record */
    uint32_t count;
    uint32_t unused;
    uint64_t offset; /* in the staging memory */
};
constexpr uint32_t kMaxRuns = 2048;

struct Request {
    Op op;
    Lane lane;
    uint64_t submitted_ns; /* now_ns() of the session */
    union {
        SearchRequest search;
        LoadBeginRequest begin;
        LoadWriteRequest write;
        LoadEndRequest end;
        EvictRequest evict;
        ListRequest list;
    };
};

/* A node that was found. `key` is the device's, good for choosing, not for answering. */
struct Hit {
    uint32_t slot;
    float key;
};

struct Response {
    Status status;
    uint32_t count; /* Search: hits; List*: entries in the payload */
    union {
        struct { /* Search; also for Behind: nodes and epoch */
            uint32_t nodes; /* of the mirror, like twins and epoch: as of its last LoadEnd */
            uint32_t twins;
            uint32_t width; /* of the batch that the request was part of */
            SearchForm form; /* that was asked of the device: Graph or Exact */
            uint64_t epoch;
            uint32_t first_of_batch;
            uint32_t queue_ns, copy_ns, kernel_ns;
        } search;
        struct { /* LoadBegin: write pages with an epoch above `epoch`, vectors from `nodes` on */
            uint64_t load;
            uint64_t epoch;
            uint32_t nodes;
            uint32_t unused;
        } begin;
        struct { /* LoadEnd, Evict: bytes of device memory */
            uint64_t bytes;
        } end;
        struct { /* List*: how many there are in all */
            uint32_t total;
        } list;
    };
    char message[120]; /* of an error, zero-terminated */
};

/* Payload entries of ListMirrors and ListDevices. */
enum class MirrorPhase : uint32_t { Loading = 1, Ready = 2 };

/* Sizes of batches by which the forms of a search are compared (engine/cost_model.h). */
constexpr uint32_t kReferenceBatches = 4;

struct MirrorEntry {
    IndexKey index;
    uint32_t index_oid;
    Lane lane;
    MirrorPhase phase;
    Storage storage; /* of the mirror: narrower than the index's where memory is short */
    uint64_t epoch;
    uint32_t nodes;
    SearchForm form;  /* of Auto, for the ef and k of the request; 0 while it is loaded */
    uint64_t bytes;
    uint64_t idle_ns; /* since the last search */
    uint32_t exact_from; /* the least ef, for that k, from which on Auto is Exact; 0: none */
    uint32_t unused;
    float exact_us[kReferenceBatches], graph_us[kReferenceBatches]; /* as measured, for ef and k; 0: not measured */
};

struct DeviceEntry {
    char name[64];
    Lane lane;
    uint32_t number;
    uint64_t memory;        /* of the device; 0: unknown */
    uint64_t memory_limit;  /* what mirrors may take */
    uint64_t memory_used;   /* by mirrors */
    uint32_t mirrors;
    uint32_t threads;
};

/* ---- the slot area ---- */

constexpr uint32_t kQueryBytes = 64 * 1024;
constexpr uint32_t kMaxHits = 8192;
static_assert(kQueryBytes >= kMaxDimensions * sizeof(float));

using SharedSlot = SlotControl<std::atomic<uint64_t>, std::atomic<uint32_t>>;
using SharedBell = BellControl<std::atomic<uint64_t>, std::atomic<uint32_t>>;

struct alignas(128) Slot {
    alignas(64) SharedSlot control;
    alignas(64) Request request;
    alignas(64) Response response;
    alignas(128) uint8_t payload[kQueryBytes]; /* of the request, and of a List* response */
    Hit hits[kMaxHits];
};

constexpr uint32_t kAskedEntries = 64;

struct Area {
    uint32_t magic;
    uint32_t version;
    uint64_t generation;
    uint32_t slots;
    uint32_t gpus; /* devices of Lane::Gpu that can be used; 0: see gpu_reason */
    char gpu_reason[120];
    alignas(64) std::atomic<uint64_t> heartbeat_ns; /* now_ns() of the engine, ten times a second; 0: it has ended */
    alignas(64) std::atomic<uint32_t> in_flight[kLanes]; /* requests taken and not finished: a hint, for who thinks of spinning */
    /* Written by sessions: when one of them last saw to an index that hashes here, so that one of hundreds does. */
    alignas(64) std::atomic<uint64_t> load_asked_ns[kAskedEntries]; /* asked for a load in the background */
    std::atomic<uint64_t> feed_tried_ns[kAskedEntries];             /* sent what was missing */
    alignas(128) SharedBell bells[kLanes];
    alignas(4096) Slot slot[1]; /* `slots` of them */
};

constexpr size_t area_bytes(uint32_t slots)
{
    return (offsetof(Area, slot) + static_cast<size_t>(slots) * sizeof(Slot) + 4095) / 4096 * 4096;
}

/* An engine whose heart has not beaten for so long hangs: sessions stop asking, the supervisor kills it. */
constexpr uint64_t kHeartbeatNs = 100 * 1000000ull;
constexpr uint64_t kHungNs = 1000 * 1000000ull;

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(SocketPacket) == 48 && offsetof(SocketPacket, generation) == 24);
static_assert(sizeof(IndexKey) == 24 && sizeof(SearchRequest) == 48 && sizeof(Run) == 24 && sizeof(Hit) == 8);
static_assert(sizeof(ListRequest) == 16 && offsetof(Response, search.form) == 20 && offsetof(Response, search.epoch) == 24);
static_assert(sizeof(Request) <= 128 && sizeof(Response) <= 192 && sizeof(MirrorEntry) == 112 && sizeof(DeviceEntry) == 104);
static_assert(sizeof(Slot) % 128 == 0 && offsetof(Slot, payload) == 384);

} // namespace vecgpu
