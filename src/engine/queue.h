/*
 * queue.h: the requests of a lane that were taken and wait for a worker, grouped so that what can be answered together is taken
 * together.
 *
 * Not thread-safe. A slot holds one request, so the room is fixed from the start and push() cannot fail.
 */
#pragma once

#include <cstdint>
#include <vector>

#include "protocol/message.h"

namespace vecgpu {

/* A request in the engine's own memory: what the session does to its slot from now on does not matter. */
struct Task {
    uint32_t slot;
    SlotWord claim;
    Request request;
};

class TaskQueue {
public:
    using SameClass = bool (*)(const Request &a, const Request &b);

    TaskQueue(uint32_t slots, SameClass same) : same_(same), entries_(slots) { classes_.reserve(slots); }

    void push(const Task &task, uint64_t hash)
    {
        Entry &entry = entries_[task.slot];
        entry.task = task;
        entry.order = ++order_;
        entry.next = kNone;
        size_++;
        for (Class &one : classes_)
            if (one.hash == hash && same_(entries_[one.head].task.request, task.request)) {
                entries_[one.tail].next = task.slot;
                one.tail = task.slot;
                one.count++;
                return;
            }
        classes_.push_back({hash, task.slot, task.slot, 1});
    }

    bool empty() const { return size_ == 0; }
    uint32_t size() const { return size_; }

    /* How many are in the class whose first request is the oldest of all: the one that is served next. */
    uint32_t next_count() const { return classes_[oldest()].count; }

    /* Moves at most `most` of them to *out, oldest first. */
    void take(uint32_t most, std::vector<Task> *out)
    {
        size_t at = oldest();
        Class &one = classes_[at];
        uint32_t count = one.count < most ? one.count : most;
        for (uint32_t i = 0; i < count; i++) {
            out->push_back(entries_[one.head].task);
            one.head = entries_[one.head].next;
        }
        one.count -= count;
        size_ -= count;
        if (one.count == 0) {
            classes_[at] = classes_.back();
            classes_.pop_back();
        }
    }

private:
    struct Entry {
        Task task;
        uint64_t order;
        uint32_t next;
    };
    struct Class {
        uint64_t hash;
        uint32_t head, tail, count;
    };

    /* Few classes at a time, so the plain walk is the fast one. */
    size_t oldest() const
    {
        size_t best = 0;
        for (size_t i = 1; i < classes_.size(); i++)
            if (entries_[classes_[i].head].order < entries_[classes_[best].head].order)
                best = i;
        return best;
    }

    SameClass same_;
    std::vector<Entry> entries_; /* by slot */
    std::vector<Class> classes_;
    uint32_t size_ = 0;
    uint64_t order_ = 0;
};

} // namespace vecgpu
