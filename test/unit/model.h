/*
 * model.h: explores all interleavings of a few parties that share words of memory.
 *
 * A party is a function that touches what is shared only through op(), one operation after another, and holds nothing that needs a
 * destructor. It is a function of the results of its operations, so it needs no stack of its own while others run: to
 * learn what it does next it is run again from its last checkpoint with the results it has seen so far, until it asks for
 * one more; then longjmp leaves it. That makes a state of the whole system plain bytes: words, and for each party the results
 * it has seen. explore() goes through all of them depth first and visits no state twice; the number of schedules that the
 * visited states stand for is counted on the way.
 *
 * Memory is sequentially consistent: each operation is atomic and seen by all at once.
 */
#pragma once

#include <csetjmp>
#include <string>
#include <vector>

#include "test.h"

namespace model {

constexpr int kMaxParties = 7, kMaxHistory = 40, kMaxWords = 28, kMaxDepth = 600;

enum class Kind : uint8_t {
    Load,
    Store,
    Exchange,
    CompareExchange,
    Or,
    Wait,   /* sleeps while the word is a */
    Wake,   /* wakes one sleeper of the word */
    Choose, /* any result below a */
    Await,  /* blocked until the word has one of the bits a */
    Pop,    /* blocked while the word is 0; then takes it */
    Access, /* of a buffer word by the holder of claim b: a read, or with write a write of a */
};

struct Op {
    Kind kind;
    bool write;
    uint8_t word;
    uint64_t a, b;
};

enum class Status : uint8_t { Runs, Sleeps, Ended, Dead };

struct Party {
    Status status;
    uint8_t from;     /* checkpoint */
    uint8_t length;   /* of history */
    uint64_t kept[2]; /* with the checkpoint */
    Op pending;       /* of a party that runs or sleeps: what it does next */
    uint64_t history[kMaxHistory];
};

struct World {
    uint64_t words[kMaxWords];
    Party parties[kMaxParties];
};

/* One step of a schedule. */
struct Step {
    enum Type : uint8_t { Normal, Spurious, Crash } type;
    uint8_t party;
    uint8_t variant;
    Op op;
    uint64_t result;
};

/* What is explored. Its functions say what is right. */
struct System {
    int parties = 0;
    int words = 0;
    virtual ~System() = default;
    virtual void run(int party, int from) = 0;
    virtual const char *party_name(int party) const = 0;
    virtual std::string word_name(int word) const = 0;
    virtual std::string value_name(int word, uint64_t value) const = 0;
    /* A word was changed, or a buffer is accessed: empty if that is right. */
    virtual std::string changed(World &world, int party, int word, uint64_t old) = 0;
    virtual std::string accessed(World &world, int party, const Op &op) = 0;
    /* Nothing can go on. */
    virtual std::string stuck(const World &world) = 0;
    /* Whether a sleeper may wake up by itself; counts it. */
    virtual bool may_wake(World &, int) { return false; }
    /* Whether a party may die now, or be noticed to have ended. */
    virtual bool may_crash(const World &, int) { return false; }
    virtual void crash(World &, int) {}
};

/* ---- the party that is being run ---- */

struct Runner {
    Party *party = nullptr;
    int position = 0;
    jmp_buf out;
};
inline Runner runner;
inline std::string failure; /* of the parties' own checks, and of all others */

inline uint64_t op(Kind kind, int word, uint64_t a = 0, uint64_t b = 0, bool write = false)
{
    Party &party = *runner.party;
    if (runner.position < party.length)
        return party.history[runner.position++];
    party.pending = {kind, write, uint8_t(word), a, b};
    longjmp(runner.out, 1);
}

/*
 * All that the party knows now is `from` and what it keeps: run(party, from) can go on from here. The more often, the more
 * states are found to be equal.
 */
inline void checkpoint(int from, uint64_t first = 0, uint64_t second = 0)
{
    Party &party = *runner.party;
    if (runner.position < party.length)
        return;
    party.from = uint8_t(from);
    party.kept[0] = first;
    party.kept[1] = second;
    party.length = 0;
    runner.position = 0;
}

inline uint64_t kept(int i)
{
    return runner.party->kept[i];
}

inline void expect(bool good, const char *what)
{
    if (!good && failure.empty())
        failure = what;
}

/* Instrumented atomics: a word of the world. What nobody uses is not returned: it would make more states differ. */
template <class T>
struct Atomic {
    int id = -1;
    int word() const
    {
        expect(id >= 0, "a word that the model does not have");
        return id >= 0 ? id : 0;
    }
    T load() const { return T(op(Kind::Load, word())); }
    void store(T value) { op(Kind::Store, word(), value); }
    T exchange(T value) { return T(op(Kind::Exchange, word(), value)); }
    void fetch_or(T value) { op(Kind::Or, word(), value); }
    bool compare_exchange_strong(T &expected, T value)
    {
        T old = T(op(Kind::CompareExchange, word(), expected, value));
        bool same = old == expected;
        expected = old;
        return same;
    }
};

struct Futex {
    static void wait(Atomic<uint32_t> &word, uint32_t seen, int64_t) { op(Kind::Wait, word.word(), seen); }
    static void wake(Atomic<uint32_t> &word) { op(Kind::Wake, word.word()); }
};

/* ---- exploring ---- */

class Explorer {
public:
    explicit Explorer(System &system) : system_(system), worlds_(kMaxDepth + 1), table_(1 << 12)
    {
        path_.reserve(kMaxDepth);
    }

    uint64_t states = 0, steps = 0;
    double schedules = 0;
    int deepest = 0;
    std::string error; /* empty: everything is right */

    void explore(const World &start)
    {
        worlds_[0] = start;
        failure.clear();
        for (int p = 0; p < system_.parties; p++)
            advance(worlds_[0], p);
        schedules = visit(0);
    }

    /* The schedule that led to the error. */
    void print_path() const
    {
        for (const Step &step : path_) {
            std::string word = system_.word_name(step.op.word);
            std::string a = system_.value_name(step.op.word, step.op.a),
                        b = system_.value_name(step.op.word, step.op.b);
            std::string result = system_.value_name(step.op.word, step.result);
            const char *who = system_.party_name(step.party);
            if (step.type != Step::Normal) {
                test::note("  %-10s %s", who, step.type == Step::Crash ? "dies" : "wakes up by itself");
                continue;
            }
            static const char *const names[] = {"load", "store",  "exchange", "cas", "or",    "wait",
                                                "wake", "choose", "await",    "pop", "access"};
            std::string line = names[int(step.op.kind)];
            bool has_word = step.op.kind != Kind::Choose;
            if (has_word)
                line += " " + word;
            if (step.op.kind == Kind::CompareExchange)
                line += " " + a + " -> " + b;
            else if (step.op.kind == Kind::Access)
                line += step.op.write ? " = " + a : "";
            else if (step.op.kind != Kind::Load && step.op.kind != Kind::Wake && step.op.kind != Kind::Pop)
                line += " " + a;
            if (step.op.kind != Kind::Store && step.op.kind != Kind::Or && step.op.kind != Kind::Wake &&
                step.op.kind != Kind::Await && !step.op.write)
                line += ": " + (has_word ? result : std::to_string(step.result));
            test::note("  %-10s %s", who, line.c_str());
        }
    }

private:
    System &system_;
    std::vector<World> worlds_; /* of the path */
    std::vector<Step> path_;

    /* Visited states: hash, and how many schedules begin there; -1 while it lies on the path. 0 is no hash. */
    struct Entry {
        uint64_t hash = 0;
        double schedules = 0;
    };
    std::vector<Entry> table_;

    Entry &entry_of(uint64_t hash)
    {
        size_t mask = table_.size() - 1, i = hash & mask;
        while (table_[i].hash != 0 && table_[i].hash != hash)
            i = (i + 1) & mask;
        return table_[i];
    }

    void insert(uint64_t hash)
    {
        if (++states * 2 > table_.size()) {
            std::vector<Entry> old(table_.size() * 2);
            old.swap(table_);
            for (const Entry &entry : old)
                if (entry.hash != 0)
                    entry_of(entry.hash) = entry;
        }
        entry_of(hash) = {hash, -1};
    }

    uint64_t hash_of(const World &world) const
    {
        uint64_t hash = 0x9e3779b97f4a7c15;
        auto add = [&](uint64_t value) {
            hash = (hash ^ value) * 0xbf58476d1ce4e5b9;
            hash ^= hash >> 29;
        };
        for (int i = 0; i < system_.words; i++)
            add(world.words[i]);
        for (int p = 0; p < system_.parties; p++) {
            const Party &party = world.parties[p];
            bool over = party.status == Status::Ended || party.status == Status::Dead;
            add(uint64_t(party.status) << 16 | (over ? 0 : uint64_t(party.from) << 8 | party.length));
            if (over)
                continue;
            add(party.kept[0]);
            add(party.kept[1]);
            for (int i = 0; i < party.length; i++)
                add(party.history[i]);
        }
        hash ^= hash >> 32;
        return hash != 0 ? hash : 1;
    }

    /* Runs a party up to its next operation. It sees and changes nothing of the others. */
    void advance(World &world, int p)
    {
        runner.party = &world.parties[p];
        runner.position = 0;
        if (setjmp(runner.out) == 0) {
            system_.run(p, runner.party->from);
            runner.party->status = Status::Ended;
        } else {
            runner.party->status = Status::Runs;
        }
    }

    void resume(World &world, int p, uint64_t result)
    {
        Party &party = world.parties[p];
        if (party.length == kMaxHistory) {
            failure = std::string(system_.party_name(p)) + " goes on for ever";
            return;
        }
        party.history[party.length++] = result;
        advance(world, p);
    }

    /* In how many ways a running party can take its next step. */
    int variants(const World &world, int p) const
    {
        const Op &op = world.parties[p].pending;
        switch (op.kind) {
            case Kind::Choose:
                return int(op.a);
            case Kind::Await:
                return (world.words[op.word] & op.a) != 0;
            case Kind::Pop:
                return world.words[op.word] != 0;
            case Kind::Wake: {
                int sleepers = 0;
                for (int q = 0; q < system_.parties; q++)
                    sleepers += world.parties[q].status == Status::Sleeps && world.parties[q].pending.word == op.word;
                return sleepers > 1 ? sleepers : 1;
            }
            default:
                return 1;
        }
    }

    void perform(World &world, Step &step)
    {
        Op op = step.op;
        uint64_t &word = world.words[op.word];
        uint64_t old = word;
        step.result = old;
        switch (op.kind) {
            case Kind::Store:
            case Kind::Exchange:
                word = op.a;
                break;
            case Kind::CompareExchange:
                if (old == op.a)
                    word = op.b;
                break;
            case Kind::Or:
                word |= op.a;
                break;
            case Kind::Pop:
                word = 0;
                break;
            case Kind::Wait:
                if (old == op.a) {
                    world.parties[step.party].status = Status::Sleeps;
                    return;
                }
                break;
            case Kind::Wake:
                for (int q = 0, n = 0; q < system_.parties; q++) {
                    Party &party = world.parties[q];
                    if (party.status == Status::Sleeps && party.pending.word == op.word && n++ == step.variant) {
                        resume(world, q, 0);
                        break;
                    }
                }
                break;
            case Kind::Choose:
                step.result = step.variant;
                break;
            case Kind::Access:
                failure = system_.accessed(world, step.party, op);
                if (op.write)
                    word = op.a;
                break;
            case Kind::Load:
            case Kind::Await:
                break;
        }
        /* Results that a party does not see, or that say nothing, must not make states different. */
        if (op.kind == Kind::Store || op.kind == Kind::Or || op.kind == Kind::Wait || op.kind == Kind::Wake ||
            op.kind == Kind::Await || (op.kind == Kind::Access && op.write))
            step.result = 0;
        if (word != old && op.kind != Kind::Access && failure.empty())
            failure = system_.changed(world, step.party, op.word, old);
        if (failure.empty())
            resume(world, step.party, step.result);
    }

    double visit(int depth)
    {
        World &world = worlds_[depth];
        uint64_t hash = hash_of(world);
        Entry &known = entry_of(hash);
        if (known.hash == hash) {
            if (known.schedules < 0)
                error = "goes round in a circle";
            return known.schedules;
        }
        insert(hash);
        if (depth > deepest)
            deepest = depth;
        if (depth == kMaxDepth) {
            error = "goes on for ever";
            return 0;
        }
        /* A choice concerns nobody else: whoever has one takes it at once. */
        int first = 0, last = system_.parties;
        for (int p = 0; p < system_.parties; p++)
            if (world.parties[p].status == Status::Runs && world.parties[p].pending.kind == Kind::Choose) {
                first = p;
                last = p + 1;
                break;
            }
        double total = 0;
        bool any = false, normal = false;
        for (int p = first; p < last && error.empty(); p++) {
            Status status = world.parties[p].status;
            int n = status == Status::Runs ? variants(world, p) : 0;
            for (int v = 0; v < n && error.empty(); v++) {
                any = normal = true;
                total += take(depth, {Step::Normal, uint8_t(p), uint8_t(v), world.parties[p].pending, 0});
            }
            if (error.empty() && status == Status::Sleeps) {
                World &next = worlds_[depth + 1];
                next = world;
                if (system_.may_wake(next, p)) {
                    any = true;
                    total += take(depth, {Step::Spurious, uint8_t(p), 0, world.parties[p].pending, 0});
                }
            }
            if (error.empty() && status != Status::Dead && system_.may_crash(world, p)) {
                any = true;
                total += take(depth, {Step::Crash, uint8_t(p), 0, world.parties[p].pending, 0});
            }
        }
        /* Nobody has to wake up by himself or to die: without that too it must be right to stop here. */
        if (!normal && error.empty())
            error = system_.stuck(world);
        if (!any)
            total = 1;
        entry_of(hash).schedules = total;
        return total;
    }

    double take(int depth, Step step)
    {
        World &next = worlds_[depth + 1];
        next = worlds_[depth];
        steps++;
        if (step.type == Step::Crash) {
            system_.crash(next, step.party);
        } else if (step.type == Step::Spurious) {
            system_.may_wake(next, step.party);
            resume(next, step.party, 0);
        } else {
            perform(next, step);
        }
        path_.push_back(step);
        if (!failure.empty())
            error = failure;
        double total = error.empty() ? visit(depth + 1) : 0;
        if (error.empty())
            path_.pop_back(); /* else it is left for print_path() */
        return total;
    }
};

} // namespace model
