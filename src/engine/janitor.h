/*
 * janitor.h: the thread that frees what nobody holds any more and notices indexes and loads that are gone.
 *
 * A thread of its own because both may take long: freeing device memory, and asking a slow file system.
 */
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

#include "engine/mirrors.h"

namespace vecgpu {

class Janitor {
public:
    explicit Janitor(Mirrors &mirrors) : mirrors_(mirrors) {}
    ~Janitor() { stop(); }

    void start();
    void stop();

    /* Something was retired: sweep soon instead of within the second. */
    void hurry();

    /* Dies on the janitor's thread. */
    void bury(std::shared_ptr<void> thing);

private:
    void work();

    Mirrors &mirrors_;
    std::thread thread_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool stopping_ = false;
    bool hurry_ = false;
    std::vector<std::shared_ptr<void>> buried_;
};

} // namespace vecgpu
