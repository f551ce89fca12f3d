/*
 * queue.cpp: the queue of a lane: classes, order, room.
 */
#include "engine/queue.h"
#include "test.h"

#include <algorithm>

using namespace vecgpu;

static bool same(const Request &a, const Request &b)
{
    return a.search.k == b.search.k;
}

static Task task(uint32_t slot, uint32_t k)
{
    Task task = {};
    task.slot = slot;
    task.claim = slot * 10;
    task.request.search.k = k;
    return task;
}

static std::vector<uint32_t> take(TaskQueue *queue, uint32_t most)
{
    std::vector<Task> tasks;
    queue->take(most, &tasks);
    std::vector<uint32_t> slots;
    for (const Task &one : tasks)
        slots.push_back(one.slot);
    return slots;
}

int main()
{
    using Slots = std::vector<uint32_t>;

    TEST("what belongs together comes together, the oldest class first");
    {
        TaskQueue queue(16, same);
        CHECK(queue.empty(), "new");
        for (uint32_t slot = 0; slot < 9; slot++)
            queue.push(task(slot, slot % 3), slot % 3);
        CHECK(queue.size() == 9 && queue.next_count() == 3, "size %u", queue.size());
        CHECK((take(&queue, 100) == Slots{0, 3, 6}), "first class");
        CHECK((take(&queue, 2) == Slots{1, 4}), "part of a class");
        /* 2 is older than 7, the rest of its class. */
        CHECK((take(&queue, 100) == Slots{2, 5, 8}), "the older one");
        CHECK((take(&queue, 100) == Slots{7}), "the rest");
        CHECK(queue.empty(), "done");
    }

    TEST("equal hashes of unequal classes");
    {
        TaskQueue queue(8, same);
        for (uint32_t slot = 0; slot < 8; slot++)
            queue.push(task(slot, slot % 2), 7);
        CHECK((take(&queue, 100) == Slots{0, 2, 4, 6}), "even");
        CHECK((take(&queue, 100) == Slots{1, 3, 5, 7}), "odd");
    }

    TEST("a busy class does not keep others waiting");
    {
        TaskQueue queue(64, same);
        for (uint32_t slot = 0; slot < 32; slot++)
            queue.push(task(slot, 1), 1);
        queue.push(task(40, 2), 2);
        /* The busy class is topped up each time that some of it were taken. */
        uint32_t rounds = 0;
        for (bool met = false; !met; rounds++) {
            Slots slots = take(&queue, 8);
            met = slots == Slots{40};
            if (!met)
                for (uint32_t slot : slots)
                    queue.push(task(slot, 1), 1);
            if (rounds > 10)
                break;
        }
        CHECK(rounds == 5, "%u rounds", rounds);
    }

    TEST("random: every task comes once, in order within its class, oldest class first");
    for (uint64_t seed = 0; seed < 200; seed++) {
        test::Random random(seed);
        uint32_t slots = 1 + random.below(64);
        TaskQueue queue(slots, same);
        std::vector<std::pair<uint32_t, uint32_t>> waiting; /* slot, class: in order of arrival */
        std::vector<bool> used(slots);
        for (int step = 0; step < 300; step++) {
            uint32_t slot = random.below(slots);
            if (random.below(2) && !used[slot]) {
                uint32_t k = random.below(5);
                used[slot] = true;
                queue.push(task(slot, k), k % 3);
                waiting.push_back({slot, k});
            } else if (!queue.empty()) {
                uint32_t most = 1 + random.below(6);
                Slots got = take(&queue, most);
                CHECK(!got.empty() && got.front() == waiting.front().first, "not the oldest");
                for (uint32_t one : got)
                    used[one] = false;
                std::erase_if(waiting, [&](auto &entry) { return std::find(got.begin(), got.end(), entry.first) != got.end(); });
            }
            CHECK(queue.size() == waiting.size(), "size");
        }
    }
    return test::finish();
}
