/*
 * dispatch_test.cu: what it costs to hand one query to the GPU and to get ten rows back, without a search; and whether
 * a resident kernel keeps to its lease.
 *
 *   dispatch_test           tests, then figures
 *   dispatch_test --tests   tests only, for compute-sanitizer
 *   dispatch_test --hold N  N idle kernels of 8 blocks for 4 s, for measuring what they cost
 *
 * A query is 128 floats; the answer is ten (slot, key) made of the sum of all of them, so a query that arrives torn is
 * noticed. Callers are threads, each with a mailbox or stream of its own, one query at a time.
 *   synchronise   launch, cudaStreamSynchronize           poll         launch, the caller looks at the answer
 *   graph         captured graph, cudaStreamSynchronize   graph poll   captured graph, the caller looks at the answer
 *   resident B    a resident kernel: a cluster of B blocks of 512 threads, the first of which looks at the mailbox and
 *                 sends the query to the others, as the search does; the last gives the answer
 */
#include "launch.h"
#include "cluster.cuh"
#include "mailbox.cuh"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace vecgpu;
using namespace vecgpu::cuda;

namespace {

constexpr uint32_t kFloats = 128, kHits = 10, kThreads = 512;

/* Sum of the words as floats: the same for every thread. All threads of a block. */
__device__ float sum_of(const uint32_t *words)
{
    float sum = 0;
    for (uint32_t i = threadIdx.x & 31; i < kFloats; i += 32)
        sum += __uint_as_float(words[i]);
    for (int offset = 16; offset; offset >>= 1)
        sum += __shfl_xor_sync(0xffffffff, sum, offset);
    return sum;
}

__device__ void give(Mailbox *box, uint32_t number, float sum)
{
    auto word = [&](uint32_t i) {
        return piece_of(i == 0 ? 2 * kHits : i & 1 ? static_cast<uint32_t>(sum) + i / 2 : __float_as_uint(sum), number);
    };
    if (threadIdx.x <= kHits)
        store_host(box->answer + 2 * threadIdx.x, word(2 * threadIdx.x), word(2 * threadIdx.x + 1));
}

/* The last block gives the answer: it has the query from the first. */
__global__ void __launch_bounds__(kThreads) echo_kernel(const MailJob job, uint32_t blocks)
{
    __shared__ __align__(16) uint32_t places[2 * mail_place(kFloats)];
    __shared__ MailDesk desk;
    const uint32_t me = block_of_cluster(blocks);
    const uint64_t begun = nanoseconds();
    open_desk(desk, blocks);
    for (uint32_t number = job.first;; number++) {
        const uint32_t *query = receive_mail(job, job.boxes, number, begun, kFloats, desk, places, blocks);
        if (!query)
            break;
        const float sum = sum_of(query);
        if (me == blocks - 1)
            give(job.boxes, number, sum);
        cluster_barrier(blocks);
    }
    if (me == 0 && threadIdx.x == 0)
        store_host(&job.boxes->left, job.generation);
}

/* The number of the query is whatever the first pair says. */
__global__ void __launch_bounds__(kThreads) once_kernel(Mailbox *box)
{
    __shared__ uint32_t words[kFloats], number;
    if (threadIdx.x <= kFloats / 2) {
        const PiecePair pair = load_host(&box->leave + 2 * threadIdx.x);
        if (threadIdx.x == 0) {
            number = static_cast<uint32_t>(pair.second);
        } else {
            words[2 * threadIdx.x - 2] = static_cast<uint32_t>(pair.first);
            words[2 * threadIdx.x - 1] = static_cast<uint32_t>(pair.second);
        }
    }
    __syncthreads();
    give(box, number, sum_of(words));
}

bool launch_echo(const MailJob &job, uint32_t blocks, cudaStream_t stream)
{
    launch_clusters(echo_kernel, 1, blocks, kThreads, 0, stream, "echo", job, blocks);
    return true;
}

template <class Launch>
bool ask_resident(Resident &resident, const uint32_t *words, uint32_t *answer, const Lease &lease, Launch launch)
{
    return resident.ask(
        1, kFloats, 2 * kHits, [&](uint32_t) { return words; }, [&] { return lease; }, launch,
        [&](uint32_t, const uint32_t *got) { std::copy_n(got, 2 * kHits, answer); });
}

struct Query {
    uint32_t words[kFloats];
    float sum = 0;

    explicit Query(uint32_t seed)
    {
        for (uint32_t i = 0; i < kFloats; i++) {
            const float x = static_cast<float>((i * 7 + seed * 13) & 1023);
            memcpy(words + i, &x, sizeof x);
            sum += x;
        }
    }

    bool right(const uint32_t *answer) const
    {
        for (uint32_t i = 0; i < kHits; i++) {
            float key;
            memcpy(&key, answer + 2 * i + 1, sizeof key);
            if (answer[2 * i] != static_cast<uint32_t>(sum) + i || key != sum)
                return false;
        }
        return true;
    }
};

/* One caller of a mode that launches a kernel for each query. */
struct Launcher {
    Launcher(bool graph, bool poll) : poll(poll)
    {
        box.allocate(1);
        memset(static_cast<void *>(box.data()), 0, sizeof(Mailbox));
        check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
        if (!graph)
            return;
        cudaGraph_t captured;
        check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
        once_kernel<<<1, kThreads, 0, stream>>>(box.data());
        check(cudaStreamEndCapture(stream, &captured), "capture");
        check(cudaGraphInstantiate(&exec, captured, 0), "graph");
        check(cudaGraphDestroy(captured), "graph");
        check(cudaGraphUpload(exec, stream), "graph");
        check(cudaStreamSynchronize(stream), "graph");
    }

    ~Launcher()
    {
        cudaStreamSynchronize(stream);
        if (exec)
            cudaGraphExecDestroy(exec);
        cudaStreamDestroy(stream);
    }

    void ask(const uint32_t *words, uint32_t *answer)
    {
        number++;
        mail_put(box.data(), words, kFloats, number);
        if (exec)
            check(cudaGraphLaunch(exec, stream), "graph");
        else
            once_kernel<<<1, kThreads, 0, stream>>>(box.data());
        if (!poll)
            check(cudaStreamSynchronize(stream), "once");
        uint32_t count;
        for (uint32_t i = 0; i <= 2 * kHits; i++)
            while (!mail_look(box.data(), i, number, i == 0 ? &count : answer + i - 1))
                mail_pause();
    }

    bool poll;
    PinnedBuffer<Mailbox> box;
    cudaStream_t stream = nullptr;
    cudaGraphExec_t exec = nullptr;
    uint32_t number = 0;
};

double microseconds()
{
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int checks, failures;

/* `make(i)` gives caller i, a function of (words, answer). */
template <class Make>
void bench(const char *name, uint32_t callers, Make make)
{
    constexpr uint32_t kQueries = 20000, kWarm = 2000;
    std::vector<std::vector<float>> times(callers);
    std::vector<std::thread> threads;
    std::atomic<uint32_t> ready{0}, wrong{0};
    std::atomic<double> begin{0};
    for (uint32_t t = 0; t < callers; t++)
        threads.emplace_back([&, t] {
            auto ask = make(t);
            uint32_t answer[2 * kHits];
            times[t].reserve(kQueries);
            ready++;
            while (ready < callers)
                ;
            for (uint32_t i = 0; i < kQueries; i++) {
                const Query query(i * 16 + t);
                const double start = microseconds();
                if (i == kWarm && t == 0)
                    begin = start;
                ask(query.words, answer);
                times[t].push_back(static_cast<float>(microseconds() - start));
                wrong += !query.right(answer);
            }
        });
    for (std::thread &thread : threads)
        thread.join();
    const double span = microseconds() - begin;
    std::vector<float> all;
    for (const std::vector<float> &list : times)
        all.insert(all.end(), list.begin() + kWarm, list.end());
    std::sort(all.begin(), all.end());
    auto at = [&](double share) { return all[static_cast<size_t>(share * (all.size() - 1))]; };
    printf("%-12s %2u callers: p50 %6.2f  p90 %6.2f  p99 %6.2f  p99.9 %7.2f us, %.2f M/s%s\n", name, callers, at(0.5),
           at(0.9), at(0.99), at(0.999), callers * double(kQueries - kWarm) / span, wrong ? ", WRONG ANSWERS" : "");
    fflush(stdout);
    failures += wrong != 0;
}

void expect(bool good, const char *what)
{
    printf("%s %s\n", good ? "ok" : "not ok", what);
    checks++;
    failures += !good;
}

void tests()
{
    for (uint32_t blocks : {1u, 8u}) {
        Resident resident(1);
        uint32_t answer[2 * kHits], starts = 0, wrong = 0;
        auto launch = [&](const MailJob &job, cudaStream_t stream) {
            starts++;
            return launch_echo(job, blocks, stream);
        };
        auto ask = [&](uint32_t seed, const Lease &lease) {
            const Query query(seed);
            wrong += !ask_resident(resident, query.words, answer, lease, launch) || !query.right(answer);
        };
        printf("%u blocks\n", blocks);
        for (uint32_t i = 0; i < 100; i++)
            ask(i, kNoLease);
        expect(starts == 100, "without a lease every query is a launch");
        const Lease patient = {10'000'000'000, 20'000'000'000}; /* a sanitizer is slow */
        starts = 0;
        for (uint32_t i = 0; i < 100; i++)
            ask(i, patient);
        expect(starts == 1 && resident.here(), "with one all queries share a launch");
        const double told = microseconds();
        resident.dismiss();
        resident.wait();
        printf("  told to leave, gone after %.1f us\n", microseconds() - told);
        expect(!resident.here(), "it leaves when told to");
        ask(1, patient);
        expect(starts == 2 && resident.here(), "and the next query starts it again");
        resident.dismiss();
        resident.wait();
        const Lease brief = {200'000, 1'000'000'000};
        ask(2, brief);
        const double idle = microseconds();
        resident.wait();
        printf("  without a query, gone after %.0f us\n", microseconds() - idle);
        expect(!resident.here(), "it leaves when there is nothing to do");
        starts = 0;
        const Lease whole = {100'000'000, 2'000'000};
        const double busy = microseconds();
        uint32_t asked = 0;
        for (; starts < 4 && microseconds() - busy < 10e6; asked++)
            ask(asked, whole);
        printf("  whole lease 2 ms, %.0f ms of %u queries: %u starts\n", (microseconds() - busy) / 1000, asked, starts);
        expect(starts == 4, "it leaves when its whole lease is over, though busy");

        /* Queries at the moment when the kernel leaves: after pauses about as long as the lease. */
        starts = 0;
        const Lease short_lease = {20'000, 1'000'000'000};
        for (uint32_t i = 0; i < 2000; i++) {
            const double until = microseconds() + 15 + 0.01 * (i % 1000);
            while (microseconds() < until)
                ;
            ask(i, short_lease);
        }
        printf("  pauses of 15 to 25 us, lease 20 us: %u starts for 2,000 queries\n", starts);

        /* Told to leave all the time, by another thread. */
        std::atomic<bool> stop{false};
        std::thread other([&] {
            while (!stop)
                resident.dismiss();
        });
        for (uint32_t i = 0; i < 2000; i++)
            ask(i, kLease);
        stop = true;
        other.join();
        expect(wrong == 0, "every answer is right");
    }
}

/* Idle kernels, beside whatever else runs on the device. */
void hold(uint32_t kernels)
{
    std::vector<std::unique_ptr<Resident>> residents;
    uint32_t answer[2 * kHits];
    const Query query(1);
    const Lease lease = {4'000'000'000, 4'000'000'000};
    for (uint32_t i = 0; i < kernels; i++) {
        residents.push_back(std::make_unique<Resident>(1));
        ask_resident(*residents.back(), query.words, answer, lease,
                     [](const MailJob &job, cudaStream_t stream) { return launch_echo(job, 8, stream); });
    }
    for (const std::unique_ptr<Resident> &resident : residents)
        resident->wait();
}

} // namespace

int main(int argc, char **argv)
{
    const bool only_tests = argc > 1 && std::string(argv[1]) == "--tests";
    try {
        cudaDeviceProp properties;
        check(cudaGetDeviceProperties(&properties, 0), "device");
        if (properties.major < 9) {
            printf("clusters need compute capability 9.0\n");
            return 2;
        }
        if (argc > 2 && std::string(argv[1]) == "--hold") {
            hold(static_cast<uint32_t>(atoi(argv[2])));
            return 0;
        }
        tests();
        if (!only_tests)
            for (uint32_t callers : {1u, 16u}) {
                for (bool graph : {false, true})
                    for (bool poll : {false, true})
                        bench(graph  ? poll ? "graph poll" : "graph"
                              : poll ? "poll"
                                     : "synchronise",
                              callers, [&](uint32_t) {
                                  return [own = std::make_shared<Launcher>(graph, poll)](
                                             const uint32_t *words, uint32_t *answer) { own->ask(words, answer); };
                              });
                for (uint32_t blocks : {1u, 4u, 8u})
                    bench(("resident " + std::to_string(blocks)).c_str(), callers, [&](uint32_t) {
                        return [own = std::make_shared<Resident>(1), blocks](const uint32_t *words, uint32_t *answer) {
                            if (!ask_resident(*own, words, answer, kLease,
                                              [&](const MailJob &job, cudaStream_t stream) {
                                                  return launch_echo(job, blocks, stream);
                                              }))
                                fail(Status::DeviceError, "no answer");
                        };
                    });
            }
    } catch (const Failure &failure) {
        printf("failed: %s\n", failure.text);
        return 1;
    }
    if (only_tests)
        printf("%d passed, %d failed\n", checks - failures, failures);
    return failures != 0;
}
