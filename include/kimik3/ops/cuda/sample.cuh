#pragma once
// Drawing tokens on the GPU: a block a row. What top-k and top-p keep is a stretch of the logits in falling order; a
// radix search finds its end: a pass over the row for every eight bits, which counts the tokens and the mass of each
// digit in integers. The draw sums stretches of ids, one a thread, and these in the order of the ids; a stretch ends
// where the next begins, so that a random number falls in one of them.

#include "kimik3/core/dtype.hpp"
#include "kimik3/ops/cuda/launch.cuh"
#include "kimik3/ops/sample.hpp"

namespace kimik3 {
namespace gpu {

inline constexpr int sample_threads = 1024;

template <class T>
struct SampleWork {
    MatrixView<const T> logits;
    const SampleRow* rows;
    const std::int32_t* history;
    double *values, *weights;  // [rows, V] each
    std::int32_t* chosen;      // [rows]
};

/// A block's row on the way from logits to a token.
template <class T>
struct Drawing {
    struct Shared {
        double sums[sample_threads];
        unsigned long long mass[256];
        unsigned count[256];
        unsigned long long prefix, mass_above, target;
        unsigned count_above;
        int ids[32];
        int broken, last;
    };
    using Key = unsigned long long;

    const T* logits;
    SampleRow rule;
    double *value, *weight;
    int size, thread;
    Shared& shared;

    /// A key whose order is that of the numbers.
    __device__ static Key key_of(double number) {
        const long long bits = __double_as_longlong(number + 0.0);
        return static_cast<Key>(bits) ^ (static_cast<Key>(bits >> 63) | 0x8000000000000000ull);
    }
    /// A weight in units of 2^-45 of the highest.
    __device__ static Key mass_of(double weight) { return static_cast<Key>(weight * 0x1p45); }
    /// Digits of a key that are not the same for all logits.
    __device__ int digits() const {
        if (rule.repetition_penalty != 1.0 || std::is_same_v<T, double>) return 8;
        return std::is_same_v<T, float> ? 5 : 3;
    }

    /// The thread's stretch of the sum of all: from the sum of earlier threads' numbers to where the next begins.
    struct Stretch {
        double begin, end, total;
    };
    __device__ Stretch stretch_of(double mine) {
        double* sums = shared.sums;
        sums[thread] = mine;
        __syncthreads();
        if (thread < 32) {
            double run = 0, earlier = 0;
            for (int i = 0; i < 32; ++i) {
                const double next = sums[32 * thread + i];
                sums[32 * thread + i] = run;
                run += next;
            }
            for (int lane = 0; lane < 32; ++lane) {
                const double other = __shfl_sync(0xffffffffu, run, lane);
                if (lane < thread) earlier += other;
                if (lane == 31 && thread == 31) shared.target = __double_as_longlong(earlier + run);
            }
            for (int i = 0; i < 32; ++i) sums[32 * thread + i] += earlier;
        }
        __syncthreads();
        const double total = __longlong_as_double(static_cast<long long>(shared.target)),
                     end = thread + 1 < sample_threads ? sums[thread + 1] : total;
        const Stretch stretch{sums[thread], end, total};
        __syncthreads();
        return stretch;
    }

    /// The highest number and its lowest id; the block's numbers are given by number(id).
    template <class Number>
    __device__ auto highest(Number number, int& id) {
        using Value = decltype(number(0));
        Value best = -INFINITY;
        int at = size;
#pragma unroll 8
        for (int i = thread; i < size; i += sample_threads)
            if (const Value now = number(i); now > best) best = now, at = i;
        const auto join = [&](Value other, int other_at) {
            if (other > best || (other == best && other_at < at)) best = other, at = other_at;
        };
        for (int apart = 16; apart > 0; apart /= 2)
            join(__shfl_xor_sync(0xffffffffu, best, apart), __shfl_xor_sync(0xffffffffu, at, apart));
        if (thread % 32 == 0) shared.sums[thread / 32] = best, shared.ids[thread / 32] = at;
        __syncthreads();
        for (int w = 0; w < 32; ++w) join(static_cast<Value>(shared.sums[w]), shared.ids[w]);
        __syncthreads();
        id = at;
        return best;
    }

    /// Keeps the first tokens in falling order of their numbers: as many as count, or, where that is 0, until their
    /// mass is a share of all. What falls away weighs nothing.
    __device__ void keep_first(unsigned count, double share) {
        if (thread == 0) shared.prefix = 0, shared.mass_above = 0, shared.count_above = 0;
        const int all = digits();
        for (int digit = 0; digit < all; ++digit) {
            const int shift = 56 - 8 * digit;
            if (thread < 256) shared.count[thread] = 0, shared.mass[thread] = 0;
            __syncthreads();
            const Key prefix = shared.prefix;
            for (int i = thread; i < size; i += sample_threads) {
                const Key key = key_of(value[i]);
                if (digit > 0 && key >> (shift + 8) != prefix) continue;
                const Key mass = count > 0 ? 0 : mass_of(weight[i]);
                if (count == 0 && mass == 0) continue;
                atomicAdd(&shared.count[key >> shift & 255], 1u);
                if (mass > 0) atomicAdd(&shared.mass[key >> shift & 255], mass);
            }
            __syncthreads();
            if (thread < 32) descend(digit, count, share);
            __syncthreads();
        }
        // Of tokens that equal the last that stays, those of the lowest ids.
        const Key last = shared.prefix;
        const int dropped_bits = 64 - 8 * all;
        const Key missing = shared.target - shared.mass_above;
        const double ties = count > 0 ? count - shared.count_above : 1e300;
        const int stretch = (size + sample_threads - 1) / sample_threads, first = thread * stretch,
                  end = first + stretch < size ? first + stretch : size;
        const auto tied = [&](int i) {
            return key_of(value[i]) >> dropped_bits == last && (count > 0 || mass_of(weight[i]) > 0);
        };
        __syncthreads();
        double mine = 0;
        for (int i = first; i < end; ++i) mine += tied(i);
        double rank = stretch_of(mine).begin;
        for (int i = first; i < end; ++i) {
            const Key key = key_of(value[i]) >> dropped_bits;
            if (tied(i)) {
                const double each = static_cast<double>(mass_of(weight[i]));
                const bool stays = count > 0 ? rank < ties : rank * each < static_cast<double>(missing);
                if (!stays) weight[i] = 0;
                ++rank;
            } else if (key < last) {
                weight[i] = 0;
            }
        }
        __syncthreads();
    }

    /// What may be drawn of the row, and how likely; false where it is refused.
    __device__ bool weigh() {
        for (int i = thread; i < size; i += sample_threads) value[i] = logits[i];
        __syncthreads();
        if (rule.repetition_penalty != 1.0) {
            for (Index i = thread; i < rule.history_size; i += sample_threads) {
                const std::int32_t id = history[i];
                if (id < 0 || id >= size) {
                    shared.broken = 1;
                    continue;
                }
                const double logit = logits[id];
                value[id] = logit > 0.0 ? logit / rule.repetition_penalty : logit * rule.repetition_penalty;
            }
            __syncthreads();
        }
        int id;
        const double top = highest([&](int i) { return value[i]; }, id);
        if (shared.broken != 0 || !(top > -INFINITY)) return false;
        if (rule.temperature == 0.0) {
            if (thread == 0) shared.last = id;
            return true;
        }
        for (int i = thread; i < size; i += sample_threads) weight[i] = exp((value[i] - top) / rule.temperature);
        __syncthreads();
        if (rule.top_k > 0 && rule.top_k < size) keep_first(static_cast<unsigned>(rule.top_k), 0.0);
        if (rule.top_p < 1.0) keep_first(0, rule.top_p);
        draw();
        return true;
    }

    const std::int32_t* history;

private:
    /// A warp: the digit in which the tokens, or the mass, that are to stay are complete. A lane looks at eight digits.
    __device__ void descend(int pass, unsigned count, double share) {
        const int lane = thread, from = 255 - 8 * lane;
        Key mass = 0, tokens = 0;
        for (int d = 0; d < 8; ++d) mass += shared.mass[from - d], tokens += shared.count[from - d];
        Key mass_through = mass, tokens_through = tokens;
        for (int apart = 1; apart < 32; apart *= 2) {
            const Key m = __shfl_up_sync(0xffffffffu, mass_through, apart),
                      t = __shfl_up_sync(0xffffffffu, tokens_through, apart);
            if (lane >= apart) mass_through += m, tokens_through += t;
        }
        if (pass == 0 && count == 0) {
            const double all = static_cast<double>(__shfl_sync(0xffffffffu, mass_through, 31));
            if (lane == 0) shared.target = static_cast<Key>(ceil(share * all));
            __syncwarp();
        }
        const Key target = count > 0 ? count : shared.target, base = count > 0 ? shared.count_above : shared.mass_above;
        const unsigned reached =
            __ballot_sync(0xffffffffu, base + (count > 0 ? tokens_through : mass_through) >= target);
        if (lane != (reached == 0 ? 31 : __ffs(static_cast<int>(reached)) - 1)) return;
        Key m = shared.mass_above + mass_through - mass, t = shared.count_above + tokens_through - tokens;
        int d = 0;
        for (; d < 7; ++d) {
            const Key more_mass = m + shared.mass[from - d], more_tokens = t + shared.count[from - d];
            if ((count > 0 ? more_tokens : more_mass) >= target) break;
            m = more_mass, t = more_tokens;
        }
        shared.prefix = shared.prefix << 8 | static_cast<Key>(from - d);
        shared.mass_above = m, shared.count_above = static_cast<unsigned>(t);
    }

    /// The token in whose stretch of the weights' sum, in the order of ids, the random number falls.
    __device__ void draw() {
        const int stretch = (size + sample_threads - 1) / sample_threads, first = thread * stretch,
                  end = first + stretch < size ? first + stretch : size;
        const auto drawn = [&](int i) { return weight[i] < rule.min_p ? 0.0 : weight[i]; };
        double mine = 0;
        int last = -1;
        for (int i = first; i < end; ++i)
            if (const double w = drawn(i); w > 0) mine += w, last = i;
        const Stretch sum = stretch_of(mine);
        const double target = rule.uniform * sum.total;
        if (thread == 0) shared.last = -1;
        __syncthreads();
        atomicMax(&shared.last, last);  // where rounding leaves the number beyond all
        __syncthreads();
        if (mine > 0 && sum.begin <= target && target < sum.end) {
            double run = sum.begin;
            for (int i = first; i < end; ++i) {
                if (drawn(i) <= 0) continue;
                run += drawn(i);
                last = i;
                if (run > target) break;
            }
            shared.last = last;
        }
        __syncthreads();
    }
};

template <class T>
__global__ void __launch_bounds__(sample_threads) sample_kernel(const SampleWork<T> work) {
    __shared__ typename Drawing<T>::Shared shared;
    const SampleRow rule = work.rows[blockIdx.x];
    const int thread = static_cast<int>(threadIdx.x);
    Drawing<T> drawing{work.logits.row(rule.row),
                       rule,
                       work.values + blockIdx.x * work.logits.cols,
                       work.weights + blockIdx.x * work.logits.cols,
                       static_cast<int>(rule.vocabulary),
                       thread,
                       shared,
                       work.history + rule.history};
    if (thread == 0) shared.broken = 0;
    __syncthreads();
    // NaN and +infinity are refused.
    bool broken = false;
    int id = 0;
    const auto top = drawing.highest(
        [&](int i) {
            const accumulator_t<T> logit = drawing.logits[i];
            broken |= !(logit < INFINITY);
            return logit;
        },
        id);
    if (__syncthreads_or(broken) || !(top > -INFINITY)) {
        if (thread == 0) work.chosen[blockIdx.x] = failed_row;
        return;
    }
    if (rule.temperature == 0.0 && rule.repetition_penalty == 1.0) {
        if (thread == 0) work.chosen[blockIdx.x] = id;
        return;
    }
    const bool drawn = drawing.weigh();
    __syncthreads();
    if (thread == 0) work.chosen[blockIdx.x] = drawn ? shared.last : failed_row;
}

}  // namespace gpu

template <class T>
void sample(const Context<Cuda>& ctx, MatrixView<const T> logits, std::span<const SampleRow> rows,
            std::span<const std::int32_t> history, std::vector<std::int32_t>& chosen) {
    const Index count = static_cast<Index>(rows.size()), ids = static_cast<Index>(history.size());
    chosen.resize(rows.size());
    if (count == 0) return;
    bool weighed = false;
    for (const SampleRow& row : rows) {
        require(row.row >= 0 && row.row < logits.rows && row.vocabulary >= 1 && row.vocabulary <= logits.cols,
                "sample: {} of {} logits of row {} of {}", row.vocabulary, logits.cols, row.row, logits.rows);
        require(row.history >= 0 && row.history + row.history_size <= ids, "sample: a history lies outside of all");
        weighed = weighed || row.temperature != 0.0 || row.repetition_penalty != 1.0;
    }
    const Index numbers = weighed ? count * logits.cols : 0;
    double* values = ctx.workspace<double>(Scratch::operation, 2 * numbers);
    // Few bytes each way: the kernel reads and writes them in the host's memory.
    ctx.require_not_recording();
    std::byte* memory = ctx.mailbox(static_cast<Index>(rows.size_bytes() + history.size_bytes()) + 4 * count);
    SampleRow* row_memory = reinterpret_cast<SampleRow*>(memory);
    std::int32_t *history_memory = reinterpret_cast<std::int32_t*>(row_memory + count),
                 *chosen_memory = history_memory + ids;
    std::ranges::copy(rows, row_memory);
    std::ranges::copy(history, history_memory);
    gpu::sample_kernel<T><<<gpu::exact_grid(count), gpu::sample_threads, 0, ctx.stream()>>>(
        {logits, row_memory, history_memory, values, values + numbers, chosen_memory});
    check_launch();
    ctx.synchronise();
    std::copy_n(chosen_memory, count, chosen.begin());
}

}  // namespace kimik3
