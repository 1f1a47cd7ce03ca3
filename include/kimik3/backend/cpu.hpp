#pragma once
// The CPU backend: a tag and a context. The context owns a team of threads which spins for a moment before it sleeps,
// so that starting a parallel loop costs less than a microsecond while a model runs. Results never depend on the
// number of threads: a loop body owns what it writes, and sums are split at fixed places.

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/error.hpp"

namespace kimik3 {

struct Cpu {};

namespace detail {

/// Runs one job on all its threads at a time; the caller is thread 0.
class ThreadTeam {
public:
    explicit ThreadTeam(int threads) {
        for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
    }
    ThreadTeam(const ThreadTeam&) = delete;
    ThreadTeam& operator=(const ThreadTeam&) = delete;
    ~ThreadTeam() {
        run(nullptr, nullptr);
        for (std::thread& worker : workers_) worker.join();
    }

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    /// Calls body(argument, thread) on every thread and waits for all; the first exception is thrown to the caller.
    void run(void (*body)(void*, int), void* argument) {
        body_ = body;
        argument_ = argument;
        pending_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
        {
            const std::lock_guard lock(mutex_);
            generation_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
        if (body == nullptr) return;
        attempt(0);
        while (pending_.load(std::memory_order_acquire) != 0) std::this_thread::yield();
        if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    }

private:
    void work(int thread) {
        for (unsigned seen = 0;;) {
            for (int spin = 0; spin < 20000 && generation_.load(std::memory_order_acquire) == seen; ++spin) pause();
            if (generation_.load(std::memory_order_acquire) == seen) {
                std::unique_lock lock(mutex_);
                wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
            }
            ++seen;
            if (body_ == nullptr) return;
            attempt(thread);
            pending_.fetch_sub(1, std::memory_order_release);
        }
    }

    void attempt(int thread) {
        try {
            body_(argument_, thread);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            if (!error_) error_ = std::current_exception();
        }
    }

    static void pause() {
#if defined(__x86_64__) && !defined(__CUDA_ARCH__)
        __builtin_ia32_pause();
#else
        std::this_thread::yield();
#endif
    }

    void (*body_)(void*, int) = nullptr;
    void* argument_ = nullptr;
    std::atomic<unsigned> generation_{0};
    std::atomic<int> pending_{0};
    std::mutex mutex_;
    std::condition_variable wake_;
    std::exception_ptr error_;
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
        team_ = std::make_shared<detail::ThreadTeam>(threads);
        workspaces_ = std::make_shared<std::vector<std::vector<std::max_align_t>>>(to_size(threads));
    }

    int threads() const { return team_->size(); }

    /// body(begin, end) over [0, count), one contiguous range a thread. grain is the least worth a thread of its own,
    /// and ranges begin at multiples of it.
    template <class Body>
    void parallel(Index count, Index grain, Body&& body) const {
        const Index units = ceil_div(count, grain), parts = std::min<Index>(units, threads());
        if (parts <= 1) {
            if (count > 0) body(Index{0}, count);
            return;
        }
        on_every_thread([&](int thread) {
            const Index begin = units * thread / parts * grain, end = (std::min)(count, units * (thread + 1) / parts * grain);
            if (thread < parts && begin < end) body(begin, end);
        });
    }

    /// body(task, thread) for every task in [0, count); threads take the next one as they become free, so tasks may be
    /// unequal. thread < threads() names the private workspace.
    template <class Body>
    void parallel_tasks(Index count, Body&& body) const {
        if (count <= 1 || threads() == 1) {
            for (Index task = 0; task < count; ++task) body(task, 0);
            return;
        }
        std::atomic<Index> next{0};
        on_every_thread([&](int thread) {
            for (Index task; (task = next.fetch_add(1, std::memory_order_relaxed)) < count;) body(task, thread);
        });
    }

    /// count numbers of scratch memory that belong to one thread until it asks again. It grows when it must and is then
    /// kept, so only the first step allocates. Aligned to 64 bytes; contents are whatever was there.
    template <class T>
    T* workspace(int thread, Index count) const {
        static_assert(std::is_trivially_copyable_v<T>);
        std::vector<std::max_align_t>& memory = (*workspaces_)[to_size(thread)];
        const std::size_t bytes = to_size(count) * sizeof(T) + 64;
        if (memory.size() * sizeof(std::max_align_t) < bytes) memory.resize(bytes / sizeof(std::max_align_t) + 1);
        const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
        return reinterpret_cast<T*>((address + 63) / 64 * 64);
    }

private:
    template <class Body>
    void on_every_thread(Body&& body) const {
        using Plain = std::remove_reference_t<Body>;
        team_->run([](void* argument, int thread) { (*static_cast<Plain*>(argument))(thread); }, &body);
    }

    std::shared_ptr<detail::ThreadTeam> team_;
    std::shared_ptr<std::vector<std::vector<std::max_align_t>>> workspaces_;
};

}  // namespace kimik3
