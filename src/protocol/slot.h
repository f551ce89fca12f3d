/*
 * slot.h: how a request changes hands between a session and the engine.
 *
 * PostgreSQL-free, header only: both sides and the model test (test/unit/test_slot.cpp) compile these very functions.
 *
 * A slot's state is one 64-bit word: state, the session that claimed it, and a sequence that grows with every claim.
 * Every step below is one compare-and-swap from a word that names session and sequence, so a step that comes too late,
 * of an engine that finishes what was given up or of a session that is long gone, finds another word and changes nothing.
 *
 *   session                          engine
 *   Free      -> Filling  claim
 *   Filling   -> Filled   submit
 *                                    Filled    -> Taken      take
 *                                    Taken     -> Done       finish
 *   Done      -> Free     release
 *   Filled    -> Free     abandon, not taken yet
 *   Taken     -> Abandoned abandon
 *                                    Abandoned -> Free       finish
 *   any       -> Free / Abandoned    the session's socket closed: reclaim (the session runs no more)
 *
 * Buffers of a slot belong to the session in Filling and Done, to the engine in Taken and Abandoned, to nobody else.
 *
 * Sleeping: who wants to sleep says so in a word, looks once more, and sleeps on that same word. Who has news clears the word
 * before it wakes. So a waker that was held up between the two and comes when the sleeper is at its next sleep cannot take the
 * mark of that sleep away and leave it asleep: a sleeper whose mark is gone does not fall asleep, and a slot's mark is the
 * claim's sequence, which a finish of an older claim does not match.
 *
 * All accesses are sequentially consistent: "I say that I sleep, then look for news" against "I make news, then look who
 * sleeps" needs it, and it is what the model test assumes.
 */
#pragma once

#include <atomic>
#include <cstdint>

namespace vecgpu {

enum class SlotState : uint8_t { Free = 0, Filling = 1, Filled = 2, Taken = 3, Done = 4, Abandoned = 5 };

constexpr uint32_t kMaxSession = (1u << 24) - 1;

using SlotWord = uint64_t;

constexpr SlotWord slot_word(SlotState state, uint32_t session, uint32_t sequence)
{
    return static_cast<uint64_t>(sequence) << 32 | static_cast<uint64_t>(session & kMaxSession) << 8 |
           static_cast<uint64_t>(state);
}

constexpr SlotState state_of(SlotWord word)
{
    return static_cast<SlotState>(word & 0xff);
}

constexpr uint32_t session_of(SlotWord word)
{
    return static_cast<uint32_t>(word >> 8) & kMaxSession;
}

constexpr uint32_t sequence_of(SlotWord word)
{
    return static_cast<uint32_t>(word >> 32);
}

/* Never 0, which says that nobody waits. */
constexpr uint32_t next_sequence(SlotWord word)
{
    return sequence_of(word) == UINT32_MAX ? 1 : sequence_of(word) + 1;
}

/* The same claim in another state. */
constexpr SlotWord with_state(SlotWord word, SlotState state)
{
    return (word & ~static_cast<uint64_t>(0xff)) | static_cast<uint64_t>(state);
}

/*
 * What two processes share of one slot. Atomic64 and Atomic32 are std::atomic, or instrumented in the model test; Futex
 * offers wait(Atomic32 &word, uint32_t seen, int64_t timeout_ns) and wake(Atomic32 &word).
 */
template <class Atomic64, class Atomic32>
struct SlotControl {
    Atomic64 word;
    Atomic32 waiting; /* futex; sequence of the claim whose session sleeps, or is about to; 0: none */
};

/* ---- session ---- */

/* Free -> Filling. On success *claim is the word that all further steps start from. */
template <class Slot>
bool slot_claim(Slot &slot, uint32_t session, SlotWord *claim)
{
    SlotWord word = slot.word.load();
    if (state_of(word) != SlotState::Free)
        return false;
    SlotWord mine = slot_word(SlotState::Filling, session, next_sequence(word));
    if (!slot.word.compare_exchange_strong(word, mine))
        return false;
    *claim = mine;
    return true;
}

/* Filling -> Filled. */
template <class Slot>
void slot_submit(Slot &slot, SlotWord claim)
{
    slot.word.store(with_state(claim, SlotState::Filled));
}

template <class Slot>
bool slot_done(Slot &slot, SlotWord claim)
{
    return slot.word.load() == with_state(claim, SlotState::Done);
}

/* Sleeps until the request is done, the time is over or a signal came; the caller looks at slot_done() and decides. */
template <class Futex, class Slot>
void slot_wait(Slot &slot, SlotWord claim, int64_t timeout_ns)
{
    slot.waiting.store(sequence_of(claim));
    if (!slot_done(slot, claim))
        Futex::wait(slot.waiting, sequence_of(claim), timeout_ns);
    slot.waiting.store(0);
}

/* Done -> Free. */
template <class Slot>
void slot_release(Slot &slot, SlotWord claim)
{
    slot.word.store(with_state(claim, SlotState::Free));
}

/* Gives up a claim in whatever state it is. The session must not touch the slot's buffers afterwards. */
template <class Slot>
void slot_abandon(Slot &slot, SlotWord claim)
{
    for (;;) {
        SlotWord word = slot.word.load();
        if (with_state(word, SlotState::Free) != with_state(claim, SlotState::Free))
            return; /* reclaimed already */
        SlotState state = state_of(word);
        if (state == SlotState::Free || state == SlotState::Abandoned)
            return;
        SlotState next = state == SlotState::Taken ? SlotState::Abandoned : SlotState::Free;
        if (slot.word.compare_exchange_strong(word, with_state(word, next)))
            return;
    }
}

/* ---- engine ---- */

/* Filled -> Taken. On success *claim names the request for slot_finish(). */
template <class Slot>
bool slot_take(Slot &slot, SlotWord *claim)
{
    SlotWord word = slot.word.load();
    if (state_of(word) != SlotState::Filled)
        return false;
    if (!slot.word.compare_exchange_strong(word, with_state(word, SlotState::Taken)))
        return false;
    *claim = with_state(word, SlotState::Taken);
    return true;
}

/* Whether somebody still waits for a request that was taken; for work that can end early. */
template <class Slot>
bool slot_wanted(Slot &slot, SlotWord claim)
{
    return slot.word.load() == claim;
}

/* Taken -> Done, or Abandoned -> Free. Wakes the session, once. */
template <class Futex, class Slot>
void slot_finish(Slot &slot, SlotWord claim)
{
    SlotWord word = claim;
    if (slot.word.compare_exchange_strong(word, with_state(claim, SlotState::Done))) {
        /* From here on the slot may be anybody's. */
        uint32_t sleeper = sequence_of(claim);
        if (slot.waiting.load() == sleeper && slot.waiting.compare_exchange_strong(sleeper, 0))
            Futex::wake(slot.waiting);
    } else if (word == with_state(claim, SlotState::Abandoned)) {
        slot.word.store(with_state(claim, SlotState::Free));
    }
}

/* The session is gone. Its requests that are being worked on are freed by slot_finish(). */
template <class Slot>
void slot_reclaim(Slot &slot, uint32_t session)
{
    SlotWord word = slot.word.load();
    if (state_of(word) != SlotState::Free && session_of(word) == session)
        slot_abandon(slot, word);
}

/* ---- doorbell: tells the engine which slots to look at ---- */

constexpr uint32_t kMaxSlots = 4096;
constexpr uint32_t kBellWords = kMaxSlots / 64;

template <class Atomic64, class Atomic32>
struct BellControl {
    Atomic32 sleeping; /* futex; 1: the engine sleeps, or is about to */
    Atomic64 words;    /* bit w: filled[w] may have bits */
    Atomic64 filled[kBellWords];
};
static_assert(kBellWords == 64);

/* After slot_submit(). */
template <class Futex, class Bell>
void bell_ring(Bell &bell, uint32_t slot)
{
    bell.filled[slot / 64].fetch_or(static_cast<uint64_t>(1) << slot % 64);
    bell.words.fetch_or(static_cast<uint64_t>(1) << slot / 64);
    if (bell.sleeping.load() != 0 && bell.sleeping.exchange(0) != 0)
        Futex::wake(bell.sleeping);
}

/*
 * Wakes the engine without a request. To be called after slot_reclaim() too: a session that died in bell_ring() may have taken
 * the mark of a sleep without waking the sleeper, who would not hear others ring until its time is over.
 */
template <class Futex, class Bell>
void bell_wake(Bell &bell)
{
    bell.sleeping.store(0);
    Futex::wake(bell.sleeping);
}

/* Calls visit(slot) for every slot that was rung since the last call. One thread at a time. */
template <class Bell, class Visit>
bool bell_collect(Bell &bell, Visit visit)
{
    if (bell.words.load() == 0)
        return false;
    for (uint64_t words = bell.words.exchange(0); words != 0; words &= words - 1) {
        uint32_t w = static_cast<uint32_t>(__builtin_ctzll(words));
        for (uint64_t bits = bell.filled[w].exchange(0); bits != 0; bits &= bits - 1)
            visit(w * 64 + static_cast<uint32_t>(__builtin_ctzll(bits)));
    }
    return true;
}

/* Sleeps until somebody rings or the time is over. One thread at a time, the one that collects. */
template <class Futex, class Bell>
void bell_sleep(Bell &bell, int64_t timeout_ns)
{
    bell.sleeping.store(1);
    if (bell.words.load() == 0)
        Futex::wait(bell.sleeping, 1, timeout_ns);
    bell.sleeping.store(0);
}

} // namespace vecgpu
