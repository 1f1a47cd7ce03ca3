#pragma once
// The CPU backend: a tag and a context. The context owns a team of threads which spins for a moment before it sleeps,
// so that starting a parallel loop costs less than a microsecond while a model runs. Copies share the team, which works
// for one thread at a time. Ranges and tasks go to whichever thread comes for them, and the caller never waits for a
// thread that has not come: on a busy machine a loop takes no longer than on one thread. Results never depend on the
// number of threads: a loop body owns what it writes, and sums are split at fixed places.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/error.hpp"
#include "kimik3/core/memory.hpp"

namespace kimik3 {

struct Cpu {};

namespace detail {

/// Runs one job at a time on the threads that are free for it; the caller is thread 0.
class ThreadTeam {
public:
    explicit ThreadTeam(int threads) : workspaces_(to_size(threads)) {
        try {
            for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
        } catch (const std::system_error& problem) {
            const std::size_t started = workers_.size() + 1;
            end();
            fail("{} threads are wanted, the system gives {}: {}; ask for no more, or raise its limits", threads,
                 started, problem.code().message());
        }
    }
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;
    ~ThreadTeam() { end(); }

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    /// Which of its threads the caller is while a job runs on it, or -1.
    int place_of_caller() const { return place_.team == this ? place_.thread : -1; }

    /// Calls body(argument, thread) on the caller, and on every other thread that comes before the caller's call has
    /// returned; waits for those that came. The first exception is thrown to the caller.
    void run(void (*body)(void*, int), void* argument) {
        require(!taken_.exchange(true, std::memory_order_acquire),
                "two threads use one Context<Cpu>, or copies of one, at a time: give each a context of its own");
        open(body, argument);
        attempt(0);
        state_.fetch_and(~is_open, std::memory_order_relaxed);
        for (int turn = 0; (state_.load(std::memory_order_acquire) & busy) != 0; ++turn) wait_a_little(turn);
        const std::exception_ptr error = std::exchange(error_, nullptr);
        taken_.store(false, std::memory_order_release);
        if (error) std::rethrow_exception(error);
    }

    [[gnu::noinline]] void* workspace(int thread, Index bytes) {
        Memory& memory = workspaces_[to_size(thread)];
        if (memory.count() < bytes) memory = Memory((std::max)(bytes, 2 * memory.count()), 1);  // seldom
        return memory.data();
    }

private:
    // state_: the number of the job above, then whether it may still be joined, then how many workers are at it.
    static constexpr std::uint64_t busy = 0xffff, is_open = 0x10000, next_job = 0x20000;

    void end() {
        open(nullptr, nullptr);
        for (std::thread& worker : workers_) worker.join();
    }

    void open(void (*body)(void*, int), void* argument) {
        body_ = body;
        argument_ = argument;
        {
            const std::lock_guard lock(mutex_);
            const std::uint64_t job = state_.load(std::memory_order_relaxed) / next_job + 1;
            state_.store(job * next_job | is_open, std::memory_order_release);
        }
        wake_.notify_all();
    }

    void work(int thread) {
        for (std::uint64_t seen = 0;;) {
            const auto waiting = [&] {
                const std::uint64_t state = state_.load(std::memory_order_acquire);
                return state / next_job == seen || (state & is_open) == 0;
            };
            for (int turn = 0; turn < 20000 && waiting(); ++turn) wait_a_little(turn);
            if (waiting()) {
                std::unique_lock lock(mutex_);
                wake_.wait(lock, [&] { return !waiting(); });
            }
            std::uint64_t state = state_.load(std::memory_order_acquire);
            if ((state & is_open) == 0 || !state_.compare_exchange_strong(state, state + 1, std::memory_order_acquire))
                continue;
            seen = state / next_job;
            if (body_ == nullptr) return;
            attempt(thread);
            state_.fetch_sub(1, std::memory_order_release);
        }
    }

    void attempt(int thread) {
        const Place outside = std::exchange(place_, Place{this, thread});
        try {
            body_(argument_, thread);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!error_) error_ = std::current_exception();
        }
        place_ = outside;
    }

    /// Now and then another thread may have the processor.
    static void wait_a_little(int turn) {
#if defined(__x86_64__) && !defined(__CUDA_ARCH__)
        __builtin_ia32_pause();
        if (turn % 1024 != 1023) return;
#endif
        std::this_thread::yield();
    }

    struct Place {
        const ThreadTeam* team;
        int thread;
    };
    static inline thread_local Place place_{nullptr, 0};

    void (*body_)(void*, int) = nullptr;
    void* argument_ = nullptr;
    std::atomic<std::uint64_t> state_{0};
    std::atomic<bool> taken_{false};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::exception_ptr error_;
    std::vector<Memory> workspaces_;
    std::vector<std::thread> workers_;
};

}  // namespace detail

template <>
class Context<Cpu> {
public:
    /// threads: how many work on one operation, the caller among them; 0 takes all that the machine has.
    explicit Context(int threads = 0) {
        require(threads >= 0, "threads must be 0 (all) or more, got {}", threads);
        if (threads == 0) threads = (std::max)(1, static_cast<int>(std::thread::hardware_concurrency()));
        // A process made by fork has a copy of the team without its threads, which cannot be ended there.
        const auto release = [owner = ::getpid()](detail::ThreadTeam* team) {
            if (::getpid() == owner) delete team;
        };
        team_ = std::shared_ptr<detail::ThreadTeam>(new detail::ThreadTeam(threads), release);
    }

    int threads() const { return team_->size(); }

    /// What a context of a GPU does before memory is asked for; here nothing.
    void make_current() const {}

    /// body(begin, end) over [0, count) in contiguous ranges, as many as threads. grain is the least worth a thread of
    /// its own, and ranges begin at multiples of it. Within another loop's body it runs on that body's thread alone.
    template <class Body>
    void parallel(Index count, Index grain, Body&& body) const {
        using Plain = std::remove_reference_t<Body>;
        run({nullptr, [](void* of, Index begin, Index end) { (*static_cast<Plain*>(of))(begin, end); }, address(body), 0,
             count, grain});
    }

    /// body(task, thread) for every task in [0, count); threads take the next one as they become free, so tasks may be
    /// unequal. thread < threads() names the private workspace.
    template <class Body>
    void parallel_tasks(Index count, Body&& body) const {
        using Plain = std::remove_reference_t<Body>;
        run({[](void* of, Index task, int thread) { (*static_cast<Plain*>(of))(task, thread); }, nullptr,
             address(body), count});
    }

    /// count numbers of scratch memory that belong to one thread until it asks again. It grows when it must and is then
    /// kept, so only the first step allocates. Aligned to 64 bytes; contents are whatever was there.
    template <class T>
    T* workspace(int thread, Index count) const {
        static_assert(std::is_trivially_copyable_v<T>);
        return static_cast<T*>(team_->workspace(thread, count * static_cast<Index>(sizeof(T))));
    }

private:
    template <class Body>
    static void* address(Body& body) {
        return const_cast<void*>(static_cast<const void*>(&body));
    }

    /// Not a template, so that a body costs the compiler one call and no loop. Either body is called: with a task, or
    /// with the range of size elements, in units of grain, that is the task's; run counts the tasks of ranges.
    struct Tasks {
        void (*of_task)(void*, Index, int);
        void (*of_range)(void*, Index, Index);
        void* argument;
        Index count, size = 0, grain = 1;
        std::atomic<Index> next{0};

        void take(int thread) {
            const Index units = ceil_div(size, grain);
            for (Index task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) {
                if (of_task != nullptr) of_task(argument, task, thread);
                else of_range(argument, units * task / count * grain,
                              (std::min)(size, units * (task + 1) / count * grain));
            }
        }
    };
    void run(Tasks tasks) const {
        if (tasks.of_range != nullptr) tasks.count = (std::min)(ceil_div(tasks.size, tasks.grain), Index{threads()});
        if (const int place = team_->place_of_caller(); place >= 0) return tasks.take(place);
        if (tasks.count <= 1 || threads() == 1) return tasks.take(0);
        team_->run([](void* of, int thread) { static_cast<Tasks*>(of)->take(thread); }, &tasks);
    }

    std::shared_ptr<detail::ThreadTeam> team_;
};

}  // namespace kimik3
