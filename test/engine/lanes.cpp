/*
 * lanes.cpp: the threads of a lane and their doorbell, with work that only counts.
 */
#include "engine/lane.h"
#include "engine/respond.h"
#include "protocol/call.h"
#include "soon.h"
#include "test.h"

#include <cstdlib>
#include <memory>
#include <new>

#include <sys/resource.h>

using namespace vecgpu;
using engine_test::soon;

namespace {

constexpr uint32_t kSlots = 64;
constexpr Lane kLane = Lane::Host;

struct AreaMemory {
    AreaMemory() : memory(aligned_alloc(4096, area_bytes(kSlots)))
    {
        memset(memory, 0, area_bytes(kSlots));
        area().slots = kSlots;
    }
    ~AreaMemory() { free(memory); }
    Area &area() { return *static_cast<Area *>(memory); }
    uint32_t in_use()
    {
        uint32_t used = 0;
        for (uint32_t i = 0; i < kSlots; i++)
            used += state_of(area().slot[i].control.word.load()) != SlotState::Free;
        return used;
    }
    void *memory;
};

/* Answers with the number that was asked; k is the class, ef the microseconds that it takes. */
class CountingWork final : public LaneWork {
public:
    explicit CountingWork(Area &area) : area_(area) {}

    const char *refuse(const Request &request) const override { return request.op == Op::Search ? nullptr : "no"; }
    TaskQueue::SameClass same_class() const override
    {
        return [](const Request &a, const Request &b) { return a.search.k == b.search.k; };
    }
    uint64_t class_hash(const Request &request) const override { return request.search.k; }
    uint32_t share(uint32_t queued, uint32_t idle) const override { return greedy ? queued : (queued + idle) / (idle + 1); }
    void run(uint32_t, CallClock &clock, std::span<const Task> batch) noexcept override
    {
        uint32_t inside = running.fetch_add(1) + 1;
        for (uint32_t most = at_once.load(); inside > most && !at_once.compare_exchange_weak(most, inside);) {
        }
        batches.fetch_add(1);
        for (const Task &task : batch) {
            DeviceCall call(clock, now_ns());
            while (held)
                usleep(100);
            if (task.request.search.ef > 0)
                usleep(task.request.search.ef);
            area_.slot[task.slot].response.search.nodes = task.request.search.dimensions;
            tasks.fetch_add(1);
            respond(area_.slot[task.slot], task.claim, Status::Ok, nullptr);
        }
        running.fetch_sub(1);
    }

    bool greedy = false;
    std::atomic<bool> held{false}; /* calls stay where they are until it falls */
    std::atomic<uint32_t> batches{0}, tasks{0}, running{0}, at_once{0};

private:
    Area &area_;
};

void fill(const Call &call, uint32_t k, uint32_t us, uint32_t number)
{
    call.slot->request.op = Op::Search;
    call.slot->request.search = {};
    call.slot->request.search.k = k;
    call.slot->request.search.ef = us;
    call.slot->request.search.dimensions = number;
}

bool answered(const Caller &caller, const Call &call)
{
    if (call_spin(caller, call))
        return true;
    for (int i = 0; i < 2000; i++)
        if (call_wait(call, 10000000))
            return true;
    return false;
}

double cpu_seconds()
{
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    auto seconds = [](const timeval &time) { return double(time.tv_sec) + double(time.tv_usec) * 1e-6; };
    return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void hammer(uint32_t workers, uint32_t clients, uint32_t requests, uint32_t most_us)
{
    AreaMemory memory;
    CountingWork work(memory.area());
    LaneThreads lane(memory.area(), kSlots, kLane, work, workers);
    lane.start();
    std::atomic<uint32_t> wrong{0}, abandoned{0}, refused{0};
    std::vector<std::thread> threads;
    for (uint32_t c = 0; c < clients; c++)
        threads.emplace_back([&, c] {
            Caller caller;
            caller_init(&caller, &memory.area(), c + 1, kSlots);
            test::Random random(c);
            for (uint32_t i = 0; i < requests; i++) {
                Call call;
                while (!call_claim(&caller, &call))
                    std::this_thread::yield();
                uint32_t number = random.below(1000000);
                fill(call, random.below(3), most_us > 0 && random.below(4) == 0 ? random.below(most_us) : 0, number);
                bool bad = random.below(50) == 0;
                if (bad)
                    call.slot->request.op = Op(99);
                call_submit(&caller, &call, kLane);
                if (random.below(20) == 0) {
                    if (random.below(2))
                        std::this_thread::yield();
                    call_abandon(&call);
                    abandoned++;
                    continue;
                }
                if (!answered(caller, call)) {
                    wrong++;
                    call_abandon(&call);
                    continue;
                }
                const Response &response = call.slot->response;
                if (bad ? response.status != Status::BadRequest
                        : response.status != Status::Ok || response.search.nodes != number)
                    wrong++;
                refused += bad;
                call_release(&caller, &call);
                if (random.below(100) == 0)
                    usleep(random.below(300));
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    CHECK(wrong == 0, "%u workers, %u clients: %u wrong", workers, clients, wrong.load());
    uint32_t least = clients * requests - abandoned - refused;
    CHECK(work.tasks >= least && work.tasks <= clients * requests, "%u tasks", work.tasks.load());
    lane.stop();
    CHECK(memory.in_use() == 0, "%u slots leaked", memory.in_use());
    CHECK(memory.area().in_flight[uint32_t(kLane)].load() == 0, "in flight");
}

} // namespace

int main()
{
    constexpr uint32_t kRequests = 3000;
    TEST("every request is answered once, its answer is its own");
    hammer(1, 1, kRequests, 0);
    hammer(1, 8, kRequests, 0);
    hammer(4, 1, kRequests, 0);
    hammer(4, 8, kRequests, 0);
    hammer(4, 16, 200, 200);
    hammer(8, 100, 100, 100); /* more than slots */

    TEST("idle workers share what is queued");
    {
        AreaMemory memory;
        CountingWork work(memory.area());
        LaneThreads lane(memory.area(), kSlots, kLane, work, 8);
        lane.start();
        Caller caller;
        caller_init(&caller, &memory.area(), 1, kSlots);
        std::vector<Call> calls(16);
        /* On a busy machine threads get up late: some tries. */
        for (int round = 0; round < 20 && work.at_once < 6; round++) {
            for (Call &call : calls) {
                CHECK(call_claim(&caller, &call), "claim");
                fill(call, 1, 30000, 7);
            }
            for (Call &call : calls)
                call_submit(&caller, &call, kLane);
            for (Call &call : calls) {
                CHECK(answered(caller, call), "answer");
                call_release(&caller, &call);
            }
        }
        CHECK(work.at_once >= 6, "%u at once", work.at_once.load());
        /* A worker leaves its call after it has answered, and enters it after it has begun. */
        CHECK(soon([&] { return lane.longest_call_ns(now_ns()) == 0; }), "clock");
    }

    TEST("a batch holds what came while the last one ran");
    {
        AreaMemory memory;
        CountingWork work(memory.area());
        work.greedy = true;
        work.held = true;
        LaneThreads lane(memory.area(), kSlots, kLane, work, 1);
        lane.start();
        Caller caller;
        caller_init(&caller, &memory.area(), 1, kSlots);
        std::vector<Call> calls(21);
        for (size_t i = 0; i < calls.size(); i++) {
            call_claim(&caller, &calls[i]);
            fill(calls[i], 1, 0, 7);
            call_submit(&caller, &calls[i], kLane);
            if (i == 0)
                CHECK(soon([&] { return lane.longest_call_ns(now_ns() + 1) > 0; }), "clock");
        }
        work.held = false;
        for (Call &call : calls) {
            CHECK(answered(caller, call), "answer");
            call_release(&caller, &call);
        }
        CHECK(work.batches == 2, "%u batches", work.batches.load());
    }

    TEST("a session that died between its mark and its wake does not silence the bell");
    {
        AreaMemory memory;
        CountingWork work(memory.area());
        LaneThreads lane(memory.area(), kSlots, kLane, work, 3);
        lane.start();
        SharedBell &bell = memory.area().bells[uint32_t(kLane)];
        uint32_t silent = 0;
        for (int round = 0; round < 20; round++) {
            while (bell.sleeping.load() == 0)
                usleep(100);
            usleep(2000); /* all are asleep, but for one that the machine did not let get there */
            Caller caller;
            caller_init(&caller, &memory.area(), 1, kSlots);
            Call call;
            call_claim(&caller, &call);
            fill(call, 1, 0, 7);
            /* What bell_ring() does, but for the wake. */
            call.slot->request.lane = kLane;
            call.submitted_ns = now_ns();
            slot_submit(call.slot->control, call.claim);
            bell.filled[call.number / 64].fetch_or(uint64_t(1) << call.number % 64);
            bell.words.fetch_or(uint64_t(1) << call.number / 64);
            bell.sleeping.exchange(0);
            silent += !call_wait(call, 5000000);
            lane.poke();
            CHECK(answered(caller, call), "after the poke");
            call_release(&caller, &call);
            lane.poke(); /* of no consequence */
        }
        CHECK(silent >= 5, "nobody could know in %u rounds", silent);
    }

    TEST("a ring for nothing, for a slot that is not there, or from another lane");
    {
        AreaMemory memory;
        CountingWork work(memory.area());
        LaneThreads lane(memory.area(), kSlots, kLane, work, 2);
        lane.start();
        SharedBell &bell = memory.area().bells[uint32_t(kLane)];
        bell_ring<SharedFutex>(bell, 3);
        bell_ring<SharedFutex>(bell, kSlots);
        bell_ring<SharedFutex>(bell, kMaxSlots - 1);
        Caller caller;
        caller_init(&caller, &memory.area(), 1, kSlots);
        Call call;
        call_claim(&caller, &call);
        fill(call, 1, 0, 7);
        call.slot->request.lane = Lane(77);
        slot_submit(call.slot->control, call.claim);
        bell_ring<SharedFutex>(bell, call.number);
        call.submitted_ns = now_ns();
        CHECK(answered(caller, call) && call.slot->response.status == Status::BadRequest, "unknown lane");
        call_release(&caller, &call);
        call_claim(&caller, &call);
        fill(call, 1, 0, 7);
        call.slot->request.lane = Lane::Gpu;
        slot_submit(call.slot->control, call.claim);
        bell_ring<SharedFutex>(bell, call.number);
        SharedBell &other = memory.area().bells[uint32_t(Lane::Gpu)];
        for (int i = 0; i < 1000 && other.words.load() == 0; i++)
            usleep(1000);
        CHECK(other.words.load() == 1 && other.filled[0].load() == uint64_t(1) << call.number, "the other bell was rung");
        CHECK(state_of(call.slot->control.word.load()) == SlotState::Filled, "for a filled slot");
        call_abandon(&call);
        CHECK(memory.in_use() == 0, "leak");
    }

    TEST("the end: what waits is told, what runs is finished");
    {
        AreaMemory memory;
        CountingWork work(memory.area());
        work.held = true;
        LaneThreads lane(memory.area(), kSlots, kLane, work, 1);
        lane.start();
        Caller caller;
        caller_init(&caller, &memory.area(), 1, kSlots);
        std::vector<Call> calls(4);
        for (size_t i = 0; i < calls.size(); i++) {
            call_claim(&caller, &calls[i]);
            fill(calls[i], uint32_t(i), 0, 7); /* each a class of its own */
            call_submit(&caller, &calls[i], kLane);
            while (work.running == 0 && i == 0)
                usleep(100);
        }
        std::thread release([&] {
            usleep(500000); /* stop() is under way by then */
            work.held = false;
        });
        lane.stop();
        release.join();
        for (size_t i = 0; i < calls.size(); i++) {
            CHECK(call_done(calls[i]), "call %zu", i);
            CHECK(calls[i].slot->response.status == (i == 0 ? Status::Ok : Status::DeviceLost), "status %zu", i);
            call_release(&caller, &calls[i]);
        }
        CHECK(memory.in_use() == 0, "leak");
    }

    TEST("who has nothing to do takes no time");
    {
        AreaMemory memory;
        CountingWork work(memory.area());
        LaneThreads lane(memory.area(), kSlots, kLane, work, 8);
        lane.start();
        Caller caller;
        caller_init(&caller, &memory.area(), 1, kSlots);
        for (int i = 0; i < 1000; i++) { /* until they like to spin */
            Call call;
            call_claim(&caller, &call);
            fill(call, 1, 0, 7);
            call_submit(&caller, &call, kLane);
            answered(caller, call);
            call_release(&caller, &call);
        }
        usleep(20000);
        double before = cpu_seconds();
        usleep(500000);
        double used = cpu_seconds() - before;
        CHECK(used < 0.01, "%.3f s of 0.5", used);
    }
    return test::finish();
}
