#pragma once
// The CUDA backend: a tag and a context of one stream, one cuBLAS handle and the scratch memory of operations. Copies
// of a context share all of it. Operations are enqueued on the stream and return at once; a launch that fails throws,
// naming the call, file and line. Float32 products are exact float32: no TF32. The stream orders itself with the
// legacy default stream, so that plain cudaMemcpy in a program sees finished results.

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstring>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "kimik3/backend/backend.hpp"
#include "kimik3/core/error.hpp"

namespace kimik3 {

struct Cuda {};

namespace detail {

inline void cuda_check(cudaError_t status, const char* call, const char* file, int line) {
    if (status == cudaSuccess) return;
    cudaGetLastError();
    fail("{}:{}: {}: {}", file, line, call, cudaGetErrorString(status));
}
inline void cuda_check(cublasStatus_t status, const char* call, const char* file, int line) {
    if (status != CUBLAS_STATUS_SUCCESS) fail("{}:{}: {}: {}", file, line, call, cublasGetStatusString(status));
}

}  // namespace detail

/// Throws Error unless the call of the CUDA runtime or of cuBLAS succeeds.
#define KIMIK3_CUDA(call) ::kimik3::detail::cuda_check((call), #call, __FILE__, __LINE__)

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

private:
    struct Release {
        void operator()(std::byte* memory) const { cudaFree(memory); }
    };
    std::unique_ptr<std::byte, Release> data_;
    Index bytes_ = 0;
};

/// Whose scratch memory: an operation's own, that of a helper which it calls, or that of an operation made of others.
enum class Scratch : std::uint8_t { operation, walk, sums, composed };

template <>
class Context<Cuda> {
public:
    explicit Context(int device = 0) : shared_(std::make_shared<Shared>(device)) {}

    cudaStream_t stream() const { return shared_->stream; }
    cublasHandle_t cublas() const { return shared_->cublas; }
    void synchronise() const { KIMIK3_CUDA(cudaStreamSynchronize(stream())); }

    /// count numbers of scratch memory, valid until the same scratch is asked for again. It grows when it must and is
    /// then kept, so only the first step allocates.
    template <class T>
    T* workspace(Scratch scratch, Index count) const {
        DeviceMemory& memory = shared_->scratch[static_cast<std::size_t>(scratch)];
        const Index bytes = count * static_cast<Index>(sizeof(T));
        if (memory.bytes() < bytes) {
            memory = {};
            memory = DeviceMemory(bytes);
        }
        return reinterpret_cast<T*>(memory.data());
    }

    /// A host-side description (the places of sequences, the pieces of an optimizer) on the device. It is copied when
    /// its content was not among the last few that were asked for: once a pass, or once a run.
    template <class T>
    const T* on_device(std::span<const T> description) const {
        static_assert(std::is_trivially_copyable_v<T>);
        return reinterpret_cast<const T*>(shared_->find(std::as_bytes(description)));
    }

private:
    struct Description {
        std::vector<std::byte> content;
        DeviceMemory memory;
    };

    struct Shared {
        explicit Shared(int device) {
            int devices = 0;
            const cudaError_t status = cudaGetDeviceCount(&devices);
            if (status != cudaSuccess || devices == 0) {
                cudaGetLastError();
                fail("no GPU: the CUDA backend needs one, and the driver says: {}", cudaGetErrorString(status));
            }
            require(device >= 0 && device < devices, "GPUs lie in [0, {}), got {}", devices, device);
            KIMIK3_CUDA(cudaSetDevice(device));
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
            if (cublas != nullptr) cublasDestroy(cublas);
            if (stream != nullptr) cudaStreamDestroy(stream);
        }

        const std::byte* find(std::span<const std::byte> content) {
            for (auto at = descriptions.begin(); at != descriptions.end(); ++at) {
                if (at->content.size() != content.size() ||
                    std::memcmp(at->content.data(), content.data(), content.size()) != 0)
                    continue;
                descriptions.splice(descriptions.begin(), descriptions, at);
                return at->memory.data();
            }
            if (descriptions.size() == 16)
                descriptions.splice(descriptions.begin(), descriptions, std::prev(descriptions.end()));
            else
                descriptions.emplace_front();
            Description& newest = descriptions.front();
            newest.content.assign(content.begin(), content.end());
            const Index bytes = static_cast<Index>(content.size());
            if (newest.memory.bytes() < bytes) newest.memory = DeviceMemory(bytes);
            if (bytes > 0)
                KIMIK3_CUDA(cudaMemcpyAsync(newest.memory.data(), newest.content.data(), content.size(),
                                            cudaMemcpyHostToDevice, stream));
            return newest.memory.data();
        }

        cudaStream_t stream = nullptr;
        cublasHandle_t cublas = nullptr;
        DeviceMemory products;  // cuBLAS's own scratch
        DeviceMemory scratch[4];
        std::list<Description> descriptions;  // the last used first
    };

    std::shared_ptr<Shared> shared_;
};

}  // namespace kimik3
