#pragma once
// How operations run on the GPU. for_each gives every index a thread; for_rows gives every row a team, a warp or a
// block of 256 threads, which sums in a fixed order; column_sums adds up rows in two stages of fixed shape. So no
// result depends on the order in which blocks run. The lambdas are extended ones (--extended-lambda), made in free
// functions.

#include <map>
#include <mutex>

#include "kimik3/core/dtype.hpp"
#include "kimik3/tensor/cuda.cuh"

/// 1 where code is compiled for warpgroups, and for compute capability 9.0 or above.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define KIMIK3_WARPGROUPS 1
#else
#define KIMIK3_WARPGROUPS 0
#endif
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define KIMIK3_FROM_90 1
#else
#define KIMIK3_FROM_90 0
#endif

namespace kimik3::gpu {

inline constexpr int block_threads = 256;

/// Something known of every GPU, found out by ask() when the GPU is current for the first time.
template <class T>
class OfEachGpu {
public:
    template <class Ask>
    T of_current(Ask&& ask) {
        int device = 0;
        KIMIK3_CUDA(cudaGetDevice(&device));
        const std::lock_guard lock(mutex_);
        const auto place = known_.find(device);
        return place != known_.end() ? place->second : known_.emplace(device, ask()).first->second;
    }

private:
    std::mutex mutex_;
    std::map<int, T> known_;
};

/// What the current GPU is like.
inline int device_attribute(cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    KIMIK3_CUDA(cudaGetDevice(&device));
    KIMIK3_CUDA(cudaDeviceGetAttribute(&value, attribute, device));
    return value;
}
/// A grid of so many blocks fills it once.
inline Index multiprocessors() {
    static OfEachGpu<int> count;
    return count.of_current([] { return device_attribute(cudaDevAttrMultiProcessorCount); });
}
/// Bytes of dynamic shared memory that a block can have, a little kept for what a kernel declares.
inline Index most_shared_bytes() {
    static OfEachGpu<int> most;
    return most.of_current([] { return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }) - 4096;
}
/// Tells by its limit what it was compiled for: 96 threads with warpgroups (sm_90a), 64 from capability 9.0 on, 32.
template <class>
__global__ void __launch_bounds__(KIMIK3_WARPGROUPS ? 96 : KIMIK3_FROM_90 ? 64 : 32) compiled_for_kernel() {}

/// That limit of this program's kernels on this GPU, which may be newer than what they were compiled for.
inline int compiled_for() {
    static OfEachGpu<int> limit;
    return limit.of_current([] {
        cudaFuncAttributes kernel{};
        KIMIK3_CUDA(cudaFuncGetAttributes(&kernel, compiled_for_kernel<void>));
        return kernel.maxThreadsPerBlock;
    });
}
/// Whether a kernel may start before the one in front of it has ended.
inline bool starts_early() { return compiled_for() >= 64; }
/// Whether kernels multiply by warpgroups (warpgroup.cuh).
inline bool has_warpgroups() { return compiled_for() == 96; }

/// Lets the next kernel begin with what does not depend on the step's kernels before it.
__device__ inline void let_next_begin() {
#if KIMIK3_FROM_90
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
/// Waits for all kernels before this one.
__device__ inline void await_predecessor() {
#if KIMIK3_FROM_90
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// How a kernel of launch_early begins that has nothing to do before: what the next one reads early is there by then.
__device__ inline void begin_in_turn() {
    await_predecessor();
    let_next_begin();
}

template <class T>
__device__ T warp_sum(T value) {
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(0xffffffffu, value, apart);
    return value;
}
template <class T>
__device__ T warp_max(T value) {
    for (int apart = 16; apart > 0; apart /= 2) {
        const T other = __shfl_xor_sync(0xffffffffu, value, apart);
        value = other > value ? other : value;
    }
    return value;
}

/// The threads that work on a row together; every thread gets the sum.
struct Team {
    int rank, size;

    __device__ void sync() const {
        if (size == 32)
            __syncwarp();
        else
            __syncthreads();
    }
    template <class T>
    __device__ T sum(T value) const {
        value = warp_sum(value);
        return size == 32 ? value : joined(value, [](T a, T b) { return a + b; });
    }
    template <class T>
    __device__ T max(T value) const {
        value = warp_max(value);
        return size == 32 ? value : joined(value, [](T a, T b) { return a > b ? a : b; });
    }

private:
    template <class T, class Join>
    __device__ T joined(T value, Join join) const {
        __shared__ T parts[block_threads / 32];
        __syncthreads();
        if (rank % 32 == 0) parts[rank / 32] = value;
        __syncthreads();
        T total = parts[0];
        for (int p = 1; p < size / 32; ++p) total = join(total, parts[p]);
        return total;
    }
};

template <class Body>
__global__ void for_each_kernel(Index count, Body body) {
    begin_in_turn();
    const Index step = Index{gridDim.x} * blockDim.x;
    for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) body(i);
}

template <class Body>
__global__ void for_rows_kernel(Index rows, int team, Body body) {
    begin_in_turn();
    const Index teams = blockDim.x / team, step = gridDim.x * teams;
    const Team mine{static_cast<int>(threadIdx.x) % team, team};
    for (Index row = blockIdx.x * teams + threadIdx.x / team; row < rows; row += step) body(row, mine);
}

/// Blocks that share out work among them, and blocks of which each has a place of its own.
inline unsigned grid_of(Index blocks) { return static_cast<unsigned>((std::min)(blocks, Index{1} << 30)); }
inline unsigned exact_grid(Index blocks) {
    constexpr Index most = 2147483647;
    require(blocks <= most, "a launch has at most {} blocks, these shapes need {}", most, blocks);
    return static_cast<unsigned>(blocks);
}

/// A launch that may begin before the kernel before it has ended, where the GPU can do that: the kernel awaits it.
template <class... Parameters>
cudaError_t try_launch_early(const Context<Cuda>& ctx, Index blocks, int threads, Index shared_bytes,
                             void (*kernel)(Parameters...), const std::type_identity_t<Parameters>&... arguments) {
    if (blocks <= 0) return cudaSuccess;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = exact_grid(blocks);
    config.blockDim = static_cast<unsigned>(threads);
    config.dynamicSmemBytes = to_size(shared_bytes);
    config.stream = ctx.stream();
    config.attrs = &early;
    config.numAttrs = starts_early() ? 1 : 0;
    if (shared_bytes > 48 << 10)
        KIMIK3_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         static_cast<int>(shared_bytes)));
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}
template <class... Parameters>
void launch_early(const Context<Cuda>& ctx, Index blocks, int threads, Index shared_bytes,
                  void (*kernel)(Parameters...), const std::type_identity_t<Parameters>&... arguments) {
    KIMIK3_CUDA(try_launch_early(ctx, blocks, threads, shared_bytes, kernel, arguments...));
}

/// body(i) for i in [0, count). at: who is named when the launch fails, here and below.
template <class Body>
void for_each(const Context<Cuda>& ctx, Index count, Body body,
              std::source_location at = std::source_location::current()) {
    if (count <= 0) return;
    (void)try_launch_early(ctx, grid_of(ceil_div(count, block_threads)), block_threads, 0, for_each_kernel<Body>, count,
                           body);
    check_launch(at);
}

/// body(row, team) for rows of about cols elements.
template <class Body>
void for_rows(const Context<Cuda>& ctx, Index rows, Index cols, Body body,
              std::source_location at = std::source_location::current()) {
    if (rows <= 0) return;
    const int team = cols <= 1024 ? 32 : block_threads;
    (void)try_launch_early(ctx, grid_of(ceil_div(rows, block_threads / team)), block_threads, 0, for_rows_kernel<Body>,
                           rows, team, body);
    check_launch(at);
}

/// finish(c, sum over rows of term(row, c)) for every column.
template <class T, class Term, class Finish>
void column_sums(const Context<Cuda>& ctx, Index rows, Index cols, Term term, Finish finish,
                 std::source_location at = std::source_location::current()) {
    const Index stretch = (std::max)(Index{32}, ceil_div(rows, 1024)), parts = ceil_div(rows, stretch);
    T* partial = ctx.workspace<T>(Scratch::sums, parts * cols);
    for_each(ctx, parts * cols, [=] __device__(Index i) {
        const Index part = i / cols, c = i % cols, last = rows < (part + 1) * stretch ? rows : (part + 1) * stretch;
        T sum = T(0);
        for (Index row = part * stretch; row < last; ++row) sum += term(row, c);
        partial[i] = sum;
    }, at);
    for_each(ctx, cols, [=] __device__(Index c) {
        T sum = T(0);
        for (Index part = 0; part < parts; ++part) sum += partial[part * cols + c];
        finish(c, sum);
    }, at);
}

/// Zeros in the rows from first on.
template <class T>
void clear_rows_from(const Context<Cuda>& ctx, Index first, MatrixView<T> m) {
    if (first < m.rows) clear(ctx, m.middle_rows(first, m.rows - first));
}

}  // namespace kimik3::gpu
