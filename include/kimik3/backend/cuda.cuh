#pragma once
// The CUDA backend: a tag and a context of one stream, one cuBLAS handle and the scratch memory of operations. Copies
// of a context share all of it. Whatever asks a context for something makes its GPU the calling thread's current one,
// and leaves it so. Operations are enqueued on the stream and return at once; a call or launch that fails throws,
// naming itself, file and line. What goes wrong inside of a kernel is seen by a later call, unless
// CUDA_LAUNCH_BLOCKING=1 makes every launch wait. Float32 products are exact float32: no TF32. The stream orders itself
// with the legacy default stream, so that plain cudaMemcpy in a program sees finished results.

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <list>
#include <memory>
#include <optional>
#include <source_location>
#include <span>
#include <string>
#include <vector>

#include "kimik3/backend/backend.hpp"
#include "kimik3/backend/cuda_products.cuh"
#include "kimik3/core/dtype.hpp"

namespace kimik3 {

struct Cuda {};
template <>
inline constexpr bool decides_steps<Cuda> = true;
template <>
inline constexpr bool draws_tokens<Cuda> = true;
template <class T>
inline constexpr bool has_steps<Cuda, T> = !std::is_same_v<T, double>;
template <>
inline constexpr bool computes_in<Cuda, bf16> = true;
template <>
inline constexpr LogitsChunk logits_chunk<Cuda>{Index{3} << 26, 32768};

namespace detail {

/// Errors of work that was started before the call which reports them.
constexpr bool comes_from_earlier_work(cudaError_t status) {
    return status == cudaErrorIllegalAddress || status == cudaErrorLaunchFailure || status == cudaErrorAssert ||
           status == cudaErrorMisalignedAddress || status == cudaErrorInvalidAddressSpace ||
           status == cudaErrorInvalidPc || status == cudaErrorIllegalInstruction ||
           status == cudaErrorHardwareStackError || status == cudaErrorLaunchTimeout;
}

inline void cuda_check(cudaError_t status, const char* call, const char* file, unsigned line) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    fail("{}:{}: {}: {}{}", file, line, call, cudaGetErrorString(status),
         comes_from_earlier_work(status) ? ", in work started before (CUDA_LAUNCH_BLOCKING=1 shows which)" : "");
}
inline void cuda_check(cublasStatus_t status, const char* call, const char* file, unsigned line) {
    if (status != CUBLAS_STATUS_SUCCESS) fail("{}:{}: {}: {}", file, line, call, cublasGetStatusString(status));
}

/// For the question whether this program's kernels run on a GPU.
template <class>
__global__ void any_kernel() {}

/// The compute capabilities that this program's kernels were compiled for.
inline std::string compiled_capabilities() {
    std::string names;
    for (const int capability : {__CUDA_ARCH_LIST__})
        names += fmt::format("{}{}.{}", names.empty() ? "" : ", ", capability / 100, capability / 10 % 10);
    return names;
}

}  // namespace detail

/// Throws Error unless the call of the CUDA runtime or of cuBLAS succeeds.
#define KIMIK3_CUDA(call) ::kimik3::detail::cuda_check((call), #call, __FILE__, __LINE__)

/// Throws Error unless the kernel launch just before succeeded; names the function which it stands in.
inline void check_launch(std::source_location at = std::source_location::current()) {
    if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess)
        detail::cuda_check(status, fmt::format("launch in {}", at.function_name()).c_str(), at.file_name(), at.line());
}

/// Device memory that frees itself; contents are whatever was there.
class DeviceMemory {
public:
    DeviceMemory() = default;
    explicit DeviceMemory(Index bytes) : bytes_(bytes) {
        if (bytes == 0) return;
        require(bytes > 0, "a buffer holds 0 bytes or more, got {}", bytes);
        void* memory = nullptr;
        if (cudaMalloc(&memory, to_size(bytes)) == cudaErrorMemoryAllocation) {
            cudaGetLastError();
            std::size_t free = 0, total = 0;
            KIMIK3_CUDA(cudaMemGetInfo(&free, &total));
            fail("out of GPU memory: {} bytes were asked for, {} of {} are free", bytes, free, total);
        }
        KIMIK3_CUDA(cudaGetLastError());
        data_.reset(static_cast<std::byte*>(memory));
    }
    std::byte* data() const { return data_.get(); }
    Index bytes() const { return bytes_; }
    /// How often memory has been given back: while it stays the same, all that was there still is.
    static Index releases() { return released.load(); }

private:
    struct Release {
        void operator()(std::byte* memory) const {
            cudaFree(memory);
            ++released;
        }
    };
    static inline std::atomic<Index> released = 0;
    std::unique_ptr<std::byte, Release> data_;
    Index bytes_ = 0;
};

/// Host memory that kernels read and write where it lies, over the bus; frees itself.
class PinnedMemory {
public:
    PinnedMemory() = default;
    explicit PinnedMemory(Index bytes) : bytes_(bytes) {
        void* memory = nullptr;
        if (bytes > 0) KIMIK3_CUDA(cudaHostAlloc(&memory, to_size(bytes), cudaHostAllocMapped));
        data_.reset(static_cast<std::byte*>(memory));
    }
    std::byte* data() const { return data_.get(); }
    Index bytes() const { return bytes_; }

private:
    struct Release {
        void operator()(std::byte* memory) const { cudaFreeHost(memory); }
    };
    std::unique_ptr<std::byte, Release> data_;
    Index bytes_ = 0;
};

/// Whose scratch memory: an operation's own, that of a helper which it calls, that of an operation made of others, or
/// that of one which runs in a wider type.
enum class Scratch : std::uint8_t { operation, walk, sums, composed, widened };

template <>
class Context<Cuda> {
public:
    explicit Context(int device = 0) : shared_(std::make_shared<Shared>(device)) {}

    /// The GPU's number.
    int device() const { return shared_->device; }
    /// Makes the GPU the calling thread's current one, on which memory is allocated and kernels are asked about.
    void make_current() const {
        int now = 0;
        KIMIK3_CUDA(cudaGetDevice(&now));
        if (now != device()) KIMIK3_CUDA(cudaSetDevice(device()));
    }

    cudaStream_t stream() const {
        make_current();
        return shared_->stream;
    }
    cublasHandle_t cublas() const {
        make_current();
        return shared_->cublas;
    }
    void synchronise() const { KIMIK3_CUDA(cudaStreamSynchronize(stream())); }

    /// c = op(a) b + kept base by columns in bf16, where base may be c; false where cuBLAS has no kernel for the shape.
    bool product(const detail::ProductShape& shape, const void* a, const void* b, float kept, const void* base,
                 void* c) const {
        const auto [place, is_new] = shared_->plans.try_emplace(shape);
        const Index bytes = shared_->products.bytes();
        if (is_new) place->second = detail::plan_product(cublas(), shape, to_size(bytes));
        detail::ProductPlan& plan = place->second;
        if (!plan.exists) return false;
        const float one = 1.0f;
        KIMIK3_CUDA(cublasLtMatmul(reinterpret_cast<cublasLtHandle_t>(cublas()), &plan.product, &one, a, &plan.a, b,
                                   &plan.b, &kept, base, &plan.c, c, &plan.c, &plan.algorithm,
                                   shared_->products.data(), to_size(bytes), stream()));
        return true;
    }

    /// The GPU's name.
    const std::string& name() const { return shared_->name; }
    /// Bytes of the GPU's memory that nobody holds.
    Index free_bytes() const {
        make_current();
        std::size_t free = 0, total = 0;
        KIMIK3_CUDA(cudaMemGetInfo(&free, &total));
        return static_cast<Index>(free);
    }
    /// How many descriptions have been sent to the device (on_device).
    Index sent() const { return shared_->sent; }
    /// Bytes of scratch memory that operations have asked for so far.
    Index scratch_bytes() const {
        Index bytes = 0;
        for (const DeviceMemory& memory : shared_->scratch) bytes += memory.bytes();
        return bytes;
    }

    /// count numbers of scratch memory, valid until the same scratch is asked for again. It grows when it must and is
    /// then kept, so only the first step allocates.
    template <class T>
    T* workspace(Scratch scratch, Index count) const {
        DeviceMemory& memory = shared_->scratch[static_cast<std::size_t>(scratch)];
        const Index bytes = count * static_cast<Index>(sizeof(T));
        if (memory.bytes() < bytes) {
            require_not_recording();
            make_current();
            memory = {};
            memory = DeviceMemory(bytes);
        }
        return reinterpret_cast<T*>(memory.data());
    }

    /// Host memory for the few bytes that an operation gives to a kernel and takes back, valid until it is asked for
    /// again; whoever asks waits for the kernel before it returns.
    std::byte* mailbox(Index bytes) const {
        if (shared_->mailbox.bytes() < bytes) shared_->mailbox = PinnedMemory(bytes);
        return shared_->mailbox.data();
    }

    /// What body enqueues, recorded and not run: starting it does what body would do, in the memory that body names.
    /// body has run before with the same shapes, so that it needs no new memory and sends nothing from the host.
    class Recording {
    public:
        void start() const { KIMIK3_CUDA(cudaGraphLaunch(graph_.get(), stream_)); }

    private:
        friend Context;
        struct Release {
            void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
        };
        std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, Release> graph_;
        cudaStream_t stream_ = nullptr;
    };
    template <class Body>
    Recording record(Body&& body) const {
        require_not_recording();
        KIMIK3_CUDA(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
        shared_->recording = true;
        cudaGraph_t graph = nullptr;
        try {
            body();
        } catch (...) {
            shared_->recording = false;
            cudaStreamEndCapture(stream(), &graph);
            cudaGraphDestroy(graph);
            cudaGetLastError();
            throw;
        }
        shared_->recording = false;
        KIMIK3_CUDA(cudaStreamEndCapture(stream(), &graph));
        cudaGraphExec_t whole = nullptr;
        const cudaError_t status = cudaGraphInstantiate(&whole, graph, 0);
        cudaGraphDestroy(graph);
        KIMIK3_CUDA(status);
        Recording recording;
        recording.graph_.reset(whole);
        recording.stream_ = stream();
        return recording;
    }

    void require_not_recording() const { shared_->require_not_recording(); }

    /// A host-side description (the places of sequences, the pieces of an optimizer) on the device. It is copied when
    /// its content was not among the last few that were asked for: once a pass, or once a run.
    template <class T>
    const T* on_device(std::span<const T> description) const {
        static_assert(std::is_trivially_copyable_v<T>);
        make_current();
        return reinterpret_cast<const T*>(shared_->find(std::as_bytes(description)));
    }

private:
    struct Description {
        std::vector<std::byte> content;
        DeviceMemory memory;
        bool kept = false;  // a recording reads it
    };

    struct Shared {
        explicit Shared(int number) : device(number) {
            int devices = 0;
            const cudaError_t status = cudaGetDeviceCount(&devices);
            if (status != cudaSuccess || devices == 0) {
                cudaGetLastError();
                fail("no GPU: the CUDA backend needs one, and the driver says: {}", cudaGetErrorString(status));
            }
            require(device >= 0 && device < devices, "GPUs lie in [0, {}), got {}", devices, device);
            KIMIK3_CUDA(cudaSetDevice(device));
            require_kernels();
            KIMIK3_CUDA(cudaStreamCreate(&stream));
            KIMIK3_CUDA(cublasCreate(&cublas));
            KIMIK3_CUDA(cublasSetStream(cublas, stream));
            KIMIK3_CUDA(cublasSetMathMode(cublas, CUBLAS_DEFAULT_MATH));
            products = DeviceMemory(Index{32} << 20);
            KIMIK3_CUDA(cublasSetWorkspace(cublas, products.data(), to_size(products.bytes())));
        }
        Shared(const Shared&) = delete;
        Shared& operator=(const Shared&) = delete;
        ~Shared() {
            int now = device;
            cudaGetDevice(&now);
            cudaSetDevice(device);
            if (cublas != nullptr) cublasDestroy(cublas);
            if (stream != nullptr) cudaStreamDestroy(stream);
            cudaSetDevice(now);
        }

        /// Refuses a GPU that this program has no kernels for.
        void require_kernels() {
            cudaDeviceProp gpu{};
            KIMIK3_CUDA(cudaGetDeviceProperties(&gpu, device));
            name = gpu.name;
            cudaFuncAttributes kernel{};
            const cudaError_t status = cudaFuncGetAttributes(&kernel, detail::any_kernel<void>);
            if (status == cudaSuccess) return;
            cudaGetLastError();
            fail("wrong GPU architecture: {} has compute capability {}.{}, the kernels were compiled for {}: {}; "
                 "CMake's KIMIK3_CUDA_ARCH names another",
                 name, gpu.major, gpu.minor, detail::compiled_capabilities(), cudaGetErrorString(status));
        }

        void require_not_recording() const {
            require(!recording, "work that is recorded has run before with the same shapes: it asks for nothing new");
        }

        const std::byte* find(std::span<const std::byte> content) {
            for (auto at = descriptions.begin(); at != descriptions.end(); ++at) {
                if (at->content.size() != content.size() ||
                    std::memcmp(at->content.data(), content.data(), content.size()) != 0)
                    continue;
                descriptions.splice(descriptions.begin(), descriptions, at);
                at->kept |= recording;
                return at->memory.data();
            }
            require_not_recording();
            ++sent;
            Description& newest = room();
            newest.content.assign(content.begin(), content.end());
            const Index bytes = static_cast<Index>(content.size());
            if (newest.memory.bytes() < bytes) newest.memory = DeviceMemory(bytes);
            if (bytes > 0)
                KIMIK3_CUDA(cudaMemcpyAsync(newest.memory.data(), newest.content.data(), content.size(),
                                            cudaMemcpyHostToDevice, stream));
            return newest.memory.data();
        }
        /// A description to replace, first in the list: the last used of many, or a new one.
        Description& room() {
            auto last = descriptions.end();
            Index replaceable = 0;
            for (auto at = descriptions.begin(); at != descriptions.end(); ++at)
                if (!at->kept) last = at, ++replaceable;
            if (replaceable >= 16)
                descriptions.splice(descriptions.begin(), descriptions, last);
            else
                descriptions.emplace_front();
            return descriptions.front();
        }

        int device;
        std::string name;
        cudaStream_t stream = nullptr;
        cublasHandle_t cublas = nullptr;
        DeviceMemory products;  // cuBLAS's own scratch
        std::map<detail::ProductShape, detail::ProductPlan> plans;
        DeviceMemory scratch[5];
        PinnedMemory mailbox;
        std::list<Description> descriptions;  // the last used first
        Index sent = 0;
        bool recording = false;
    };

    std::shared_ptr<Shared> shared_;
};

/// Runs body, records it when it comes a second time, and starts the recording from then on; from the beginning again
/// when the shape is another, memory has been given back, or, before there is a recording, descriptions were sent.
template <>
class Repeated<Cuda> {
public:
    template <class Body>
    void run(const Context<Cuda>& ctx, std::span<const Index> shape, Body&& body) {
        const bool same = seen_ && releases_ == DeviceMemory::releases() && std::ranges::equal(shape, shape_) &&
                          (recording_ || sent_ == ctx.sent());
        ctx.make_current();
        if (!same) recording_.reset();
        if (same && !recording_) recording_.emplace(ctx.record(body));
        if (recording_) return recording_->start();
        body();
        shape_.assign(shape.begin(), shape.end());
        releases_ = DeviceMemory::releases();
        sent_ = ctx.sent();
        seen_ = true;
    }

private:
    bool seen_ = false;
    std::vector<Index> shape_;
    Index releases_ = 0, sent_ = 0;
    std::optional<Context<Cuda>::Recording> recording_;
};

}  // namespace kimik3
