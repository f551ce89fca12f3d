/*
 * test_slot.cpp: protocol/slot.h under every interleaving of its parties, with death at every step.
 *
 * The functions of slot.h run here over instrumented words (model.h). What is covered are sequentially consistent interleavings; that
 * is why slot.h uses sequentially consistent atomics throughout, so that these are all that there are.
 *
 * What must hold in every schedule:
 * - each change of a slot's word is one of the table in slot.h, made by the party that may make it (changed());
 * - buffers are touched by their owner only (accessed()), and the engine sees a whole request, the session a whole answer to it;
 * - a request is worked on at most once;
 * - nobody sleeps for ever, although no sleep here has a timeout, unless the engine died;
 * - when all is over, every slot is free.
 */
#include "model.h"

#include "protocol/slot.h"

using namespace test;
using namespace vecgpu;
using model::Kind;
using model::World;

using Atomic64 = model::Atomic<uint64_t>;
using Atomic32 = model::Atomic<uint32_t>;
using Futex = model::Futex;

/* ---- words ---- */

constexpr int kSlots = 2, kSlotWords = 5;
enum SlotPart { kWord, kWaiting, kPayload, kAnswer, kQueued };
enum Words {
    kSleeping = kSlots * kSlotWords,
    kBellMarks,
    kFilled,               /* two of them */
    kWorked = kFilled + 2, /* bits: requests that the engine began */
    kDead,                 /* bits: parties that died; the socket of a session is closed */
    kWakesLeft,            /* sleepers that may yet wake up by themselves */
    kCrashesLeft,
    kWords,
};
static_assert(kWords <= model::kMaxWords);

/* Two slots whose bells are in different words. */
static uint32_t slot_number(int slot)
{
    return slot == 0 ? 3 : 64;
}

static int slot_at(uint32_t number)
{
    model::expect(number == 3 || number == 64, "the engine was sent to a slot that nobody rang for");
    return number == 64;
}

/* What sessions and engine share. The template arguments are as in protocol/message.h. */
struct Memory {
    SlotControl<Atomic64, Atomic32> slot[kSlots];
    BellControl<Atomic64, Atomic32> bell;
    Memory()
    {
        for (int s = 0; s < kSlots; s++) {
            slot[s].word.id = s * kSlotWords + kWord;
            slot[s].waiting.id = s * kSlotWords + kWaiting;
        }
        bell.sleeping.id = kSleeping;
        bell.words.id = kBellMarks;
        bell.filled[0].id = kFilled;
        bell.filled[1].id = kFilled + 1;
    }
};
static Memory memory;

/* ---- parties ---- */

struct Scenario {
    const char *name;
    int sessions = 1;
    int requests = 2; /* of each session */
    int slot_of[2] = {0, 0};
    int tries = 1;         /* to claim the slot; then the request is not made */
    int spins = 0;         /* looks before it sleeps */
    bool gives_up = false; /* a session may give up its request at any point */
    int workers = 0;       /* of the engine, for slot 0; none: the thread that collects works too */
    int wakes = 0;         /* sleepers that wake up by themselves: signals, timeouts */
    int crashes = 0;       /* sessions that die; closers free what they held */
    bool engine_crash = false;
    bool large = false; /* for the plain build: a sanitizer learns nothing from more states of the same code */
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

enum class Role { Session, Collector, Worker, Closer };

static uint64_t tag_of(int session, int request)
{
    return uint64_t(session + 1) * 8 + uint64_t(request);
}
static uint64_t answer_to(uint64_t tag)
{
    return tag + 1000;
}

static void write(int slot, SlotPart part, SlotWord claim, uint64_t value)
{
    model::op(Kind::Access, slot * kSlotWords + part, value, claim, true);
}
static uint64_t read(int slot, SlotPart part, SlotWord claim)
{
    return model::op(Kind::Access, slot * kSlotWords + part, 0, claim);
}
static bool choose()
{
    return model::op(Kind::Choose, 0, 2) != 0;
}

struct Slots : model::System {
    Scenario scenario;
    int collector, first_worker, first_closer;

    explicit Slots(const Scenario &s) : scenario(s)
    {
        collector = s.sessions;
        first_worker = collector + 1;
        first_closer = first_worker + s.workers;
        parties = first_closer + (s.crashes > 0 ? s.sessions : 0);
        words = kWords;
    }

    Role role(int party) const
    {
        return party < collector      ? Role::Session
               : party < first_worker ? Role::Collector
               : party < first_closer ? Role::Worker
                                      : Role::Closer;
    }

    /* ---- what they do ---- */

    void run(int party, int from) override
    {
        switch (role(party)) {
            case Role::Session:
                session(party, from);
                break;
            case Role::Collector:
                collect(from);
                break;
            case Role::Worker:
                for (;;) {
                    model::checkpoint(0);
                    SlotWord claim = model::op(Kind::Pop, kQueued);
                    work(0, claim);
                    slot_finish<Futex>(memory.slot[0], claim);
                }
            case Role::Closer: {
                int session = party - first_closer;
                model::op(Kind::Await, kDead, uint64_t(1) << session);
                for (auto &slot : memory.slot)
                    slot_reclaim(slot, uint32_t(session) + 1);
                bell_wake<Futex>(memory.bell);
                break;
            }
        }
    }

    /* A checkpoint of a session: the request, and how far it is with it. */
    enum Phase { kStart, kClaimed, kSubmitted, kLooked, kPhases = kLooked + 3 };

    void session(int self, int from)
    {
        for (int request = from / kPhases, phase = from % kPhases; request < scenario.requests;
             request++, phase = kStart)
            if (!call(self, request, phase))
                break;
    }

    /* One request. False: the engine is gone. */
    bool call(int session, int request, int phase)
    {
        int number = scenario.slot_of[session];
        auto &slot = memory.slot[number];
        int start = request * kPhases;
        SlotWord claim = model::kept(0);
        uint64_t tag = tag_of(session, request);
        if (phase == kStart) {
            model::checkpoint(start + kStart);
            bool claimed = false;
            for (int i = 0; i < scenario.tries && !claimed; i++)
                claimed = slot_claim(slot, uint32_t(session) + 1, &claim);
            bool alone = scenario.sessions == 1 || scenario.slot_of[0] != scenario.slot_of[1];
            if (alone && !scenario.gives_up)
                model::expect(claimed, "a slot of one's own is not free");
            if (!claimed)
                return true;
            phase = kClaimed;
        }
        if (phase == kClaimed) {
            model::checkpoint(start + kClaimed, claim);
            write(number, kPayload, claim, tag);
            if (gave_up(slot, claim))
                return true;
            slot_submit(slot, claim);
            phase = kSubmitted;
        }
        if (phase == kSubmitted) {
            model::checkpoint(start + kSubmitted, claim);
            if (gave_up(slot, claim))
                return true;
            bell_ring<Futex>(memory.bell, slot_number(number));
            phase = kLooked;
        }
        for (int looks = phase - kLooked;; looks++) {
            model::checkpoint(start + kLooked + (looks < scenario.spins ? looks : scenario.spins), claim);
            if (slot_done(slot, claim))
                break;
            if (scenario.engine_crash && (model::op(Kind::Load, kDead) >> collector & 1) != 0)
                return false;
            if (gave_up(slot, claim))
                return true;
            if (looks >= scenario.spins)
                slot_wait<Futex>(slot, claim, 0);
        }
        if (gave_up(slot, claim))
            return true;
        model::expect(read(number, kAnswer, claim) == answer_to(tag), "a session reads an answer that is not its own");
        slot_release(slot, claim);
        return true;
    }

    template <class Slot>
    bool gave_up(Slot &slot, SlotWord claim)
    {
        if (!scenario.gives_up || !choose())
            return false;
        slot_abandon(slot, claim);
        return true;
    }

    /* A checkpoint of the collector: what it does next. */
    enum Stage { kCollect, kWork, kSleep };

    /* Natural batching: takes all that there is, then works, then finishes. */
    void collect(int stage)
    {
        for (SlotWord claims[kSlots] = {model::kept(0), model::kept(1)};;) {
            model::checkpoint(stage, claims[0], claims[1]);
            if (stage == kCollect) {
                bell_collect(memory.bell, [&](uint32_t number) {
                    int at = slot_at(number);
                    model::expect(claims[at] == 0, "a slot was collected twice");
                    if (!slot_take(memory.slot[at], &claims[at]))
                        claims[at] = 0;
                });
                stage = claims[0] == 0 && claims[1] == 0 ? kSleep : kWork;
            } else if (stage == kWork) {
                for (int i = 0; i < kSlots; i++)
                    if (claims[i] != 0 && !has_worker(i) &&
                        (!scenario.gives_up || slot_wanted(memory.slot[i], claims[i])))
                        work(i, claims[i]);
                for (int i = 0; i < kSlots; i++) {
                    if (claims[i] != 0 && has_worker(i))
                        model::op(Kind::Exchange, kQueued, claims[i]);
                    else if (claims[i] != 0)
                        slot_finish<Futex>(memory.slot[i], claims[i]);
                    claims[i] = 0;
                }
                stage = kCollect;
            } else {
                bell_sleep<Futex>(memory.bell, 0);
                stage = kCollect;
            }
        }
    }

    bool has_worker(int slot) const { return scenario.workers > 0 && slot == 0; }

    void work(int slot, SlotWord claim) { write(slot, kAnswer, claim, answer_to(read(slot, kPayload, claim))); }

    /* ---- what is right ---- */

    std::string changed(World &world, int party, int word, uint64_t old) override
    {
        if (word >= kSlots * kSlotWords || word % kSlotWords != kWord)
            return "";
        uint64_t now = world.words[word];
        SlotState from = state_of(old), to = state_of(now);
        Role who = role(party);
        bool engine = who == Role::Collector || who == Role::Worker;
        if (from == SlotState::Free) {
            bool right = to == SlotState::Filling && who == Role::Session && session_of(now) == uint32_t(party) + 1 &&
                         sequence_of(now) == sequence_of(old) + 1;
            return right ? "" : "a free slot is touched";
        }
        if (with_state(old, to) != now)
            return "a step of one claim changes another";
        bool owner = (who == Role::Session && session_of(old) == uint32_t(party) + 1) ||
                     (who == Role::Closer && session_of(old) == uint32_t(party - first_closer) + 1);
        bool right = false;
        if (from == SlotState::Filling)
            right = owner && (to == SlotState::Free || (to == SlotState::Filled && who == Role::Session));
        else if (from == SlotState::Filled)
            right = (owner && to == SlotState::Free) || (who == Role::Collector && to == SlotState::Taken);
        else if (from == SlotState::Taken)
            right = (owner && to == SlotState::Abandoned) || (engine && to == SlotState::Done);
        else if (from == SlotState::Done)
            right = owner && to == SlotState::Free;
        else if (from == SlotState::Abandoned)
            right = engine && to == SlotState::Free;
        return right ? "" : "a slot takes a step that it must not take, or by the wrong party";
    }

    std::string accessed(World &world, int party, const model::Op &op) override
    {
        uint64_t word = world.words[op.word / kSlotWords * kSlotWords + kWord];
        SlotState now = state_of(word);
        if (with_state(word, SlotState::Free) != with_state(op.b, SlotState::Free))
            return "a buffer is touched that belongs to another claim";
        bool right = role(party) == Role::Session ? now == SlotState::Filling || now == SlotState::Done
                                                  : now == SlotState::Taken || now == SlotState::Abandoned;
        if (!right)
            return "a buffer is touched by one who does not own it";
        if (role(party) == Role::Session || op.write)
            return "";
        uint64_t bit = uint64_t(1) << world.words[op.word];
        bool again = (world.words[kWorked] & bit) != 0;
        world.words[kWorked] |= bit;
        return again ? "a request is worked on twice" : "";
    }

    std::string stuck(const World &world) override
    {
        uint64_t dead = world.words[kDead];
        bool engine_dead = (dead >> collector & 1) != 0;
        for (int p = 0; p < parties; p++) {
            const model::Party &party = world.parties[p];
            bool over = party.status == model::Status::Ended || party.status == model::Status::Dead;
            if (role(p) == Role::Session && !over && !(engine_dead && party.status == model::Status::Sleeps))
                return "a session sleeps for ever: a wake was lost";
            if (role(p) == Role::Collector && !over &&
                (party.status != model::Status::Sleeps || party.pending.word != int(kSleeping)))
                return "the engine is stuck elsewhere than in its sleep";
            if (role(p) == Role::Worker && !over && party.pending.kind != Kind::Pop)
                return "a worker is stuck";
            if (role(p) == Role::Closer && !over && (dead >> (p - first_closer) & 1) != 0)
                return "a closer is stuck";
        }
        if (engine_dead)
            return ""; /* the slots went with it */
        if (world.words[kQueued] != 0 || world.words[kBellMarks] != 0)
            return "the engine sleeps although somebody rang";
        for (int s = 0; s < kSlots; s++)
            if (state_of(world.words[s * kSlotWords + kWord]) != SlotState::Free)
                return "a slot is leaked";
        return "";
    }

    bool may_wake(World &world, int party) override
    {
        if (role(party) == Role::Session && (world.words[kDead] >> collector & 1) != 0)
            return true; /* its time is over */
        if (world.words[kWakesLeft] == 0)
            return false;
        world.words[kWakesLeft]--;
        return true;
    }

    bool may_crash(const World &world, int party) override
    {
        if (role(party) == Role::Session)
            return world.words[kCrashesLeft] > 0;
        return role(party) == Role::Collector && scenario.engine_crash;
    }

    void crash(World &world, int party) override
    {
        world.words[kDead] |= uint64_t(1) << party;
        world.parties[party].status = model::Status::Dead;
        if (role(party) == Role::Session) {
            world.words[kCrashesLeft]--;
            return;
        }
        /* All threads of the engine at once. */
        for (int p = collector; p < parties; p++)
            world.parties[p].status = model::Status::Dead;
    }

    /* ---- for messages ---- */

    const char *party_name(int party) const override
    {
        static char name[32];
        static const char *const names[] = {"session", "engine", "worker", "closer"};
        int firsts[] = {0, collector, first_worker, first_closer};
        int r = int(role(party));
        snprintf(name, sizeof name, "%s %d", names[r], party - firsts[r] + 1);
        return name;
    }

    std::string word_name(int word) const override
    {
        static const char *const parts[] = {"word", "waiting", "payload", "answer", "queue"};
        static const char *const others[] = {"bell.sleeping",  "bell.words", "bell.filled[0]",
                                             "bell.filled[1]", "worked",     "dead"};
        if (word < kSlots * kSlotWords)
            return "slot " + std::to_string(word / kSlotWords) + " " + parts[word % kSlotWords];
        return others[word - kSleeping];
    }

    std::string value_name(int word, uint64_t value) const override
    {
        int part = word % kSlotWords;
        if (word >= kSlots * kSlotWords || (part != kWord && part != kQueued))
            return std::to_string(value);
        static const char *const names[] = {"Free", "Filling", "Filled", "Taken", "Done", "Abandoned"};
        return std::string(names[int(state_of(value)) % 6]) + "(" + std::to_string(session_of(value)) + "," +
               std::to_string(sequence_of(value)) + ")";
    }
};

/* ---- scenarios ---- */

static void explore(const Scenario &scenario)
{
    if (scenario.large && kSanitized)
        return;
    TEST(scenario.name);
    Slots system(scenario);
    model::Explorer explorer(system);
    World start = {};
    start.words[kWakesLeft] = uint64_t(scenario.wakes);
    start.words[kCrashesLeft] = uint64_t(scenario.crashes);
    explorer.explore(start);
    CHECK(explorer.error.empty(), "%s; the schedule:", explorer.error.c_str());
    if (!explorer.error.empty())
        explorer.print_path();
    note("%s: %.3g schedules, %" PRIu64 " states, %" PRIu64 " steps, the longest schedule %d", scenario.name,
         explorer.schedules, explorer.states, explorer.steps, explorer.deepest);
}

static void test_words()
{
    TEST("words");
    for (uint32_t session : {0u, 1u, 77u, kMaxSession})
        for (uint32_t sequence : {0u, 1u, 0x80000000u, UINT32_MAX}) {
            SlotWord word = slot_word(SlotState::Filled, session, sequence);
            CHECK(state_of(word) == SlotState::Filled && session_of(word) == session && sequence_of(word) == sequence,
                  "parts of %" PRIx64, word);
            SlotWord done = with_state(word, SlotState::Done);
            CHECK(done == slot_word(SlotState::Done, session, sequence), "%" PRIx64 " done is %" PRIx64, word, done);
            CHECK(next_sequence(word) == (sequence == UINT32_MAX ? 1 : sequence + 1), "after %u", sequence);
        }
}

int main()
{
    test_words();

    /* One slot, one session. */
    explore({.name = "one session", .requests = 4});
    explore({.name = "one session that spins first", .requests = 3, .spins = 2});
    explore({.name = "signals in sleeps", .requests = 3, .wakes = 3});
    explore({.name = "a thread that collects, one that works", .requests = 3, .workers = 1});
    explore({.name = "two threads that work", .requests = 3, .workers = 2});
    explore({.name = "two threads that work, signals", .requests = 3, .spins = 1, .workers = 2, .wakes = 2});

    /* Two sessions. */
    explore({.name = "two sessions, two slots", .sessions = 2, .slot_of = {0, 1}});
    explore({.name = "two sessions, two slots, signals", .sessions = 2, .requests = 1, .slot_of = {0, 1}, .wakes = 2});
    explore(
        {.name = "two sessions, two slots, a worker", .sessions = 2, .requests = 1, .slot_of = {0, 1}, .workers = 1});
    explore({.name = "two sessions, one slot", .sessions = 2, .tries = 2});
    explore({.name = "two sessions, one slot, a worker", .sessions = 2, .tries = 2, .workers = 1, .large = true});
    explore({.name = "two sessions, one slot, two workers", .sessions = 2, .tries = 1, .workers = 2, .large = true});

    /* Requests that are given up. */
    explore({.name = "given up", .requests = 3, .tries = 2, .gives_up = true, .wakes = 2});
    explore({.name = "given up, two workers", .requests = 3, .tries = 2, .gives_up = true, .workers = 2, .wakes = 2, .large = true});
    explore({.name = "given up, two sessions", .sessions = 2, .tries = 2, .gives_up = true, .large = true});
    explore({.name = "given up, two sessions, two workers",
             .sessions = 2,
             .requests = 1,
             .tries = 2,
             .gives_up = true,
             .workers = 2,
             .wakes = 1});

    /* Sessions that die. */
    explore({.name = "death of a session", .requests = 3, .crashes = 1});
    explore({.name = "death of a session, two workers", .requests = 3, .workers = 2, .crashes = 1});
    explore({.name = "death, the other takes the slot", .sessions = 2, .tries = 2, .crashes = 1, .large = true});
    explore({.name = "death, the other takes the slot, two workers",
             .sessions = 2,
             .requests = 1,
             .tries = 2,
             .workers = 2,
             .crashes = 1, .large = true});
    explore({.name = "death, the other has a slot of its own", .sessions = 2, .slot_of = {0, 1}, .crashes = 1, .large = true});
    explore({.name = "death of both sessions", .sessions = 2, .requests = 1, .tries = 2, .crashes = 2, .large = true});
    explore({.name = "death and giving up",
             .sessions = 2,
             .requests = 1,
             .tries = 2,
             .gives_up = true,
             .workers = 1,
             .wakes = 1,
             .crashes = 1, .large = true});

    /* The engine dies. */
    explore({.name = "death of the engine", .requests = 3, .engine_crash = true});
    explore({.name = "death of the engine, workers", .requests = 3, .workers = 2, .engine_crash = true});
    explore({.name = "death of the engine, two sessions", .sessions = 2, .slot_of = {0, 1}, .engine_crash = true});
    explore({.name = "death of the engine and a session",
             .sessions = 2,
             .requests = 1,
             .tries = 2,
             .workers = 1,
             .crashes = 1,
             .engine_crash = true, .large = true});
    return finish();
}
