#pragma once
// What the programs ask of the device that a model computes on. The CUDA part is for nvcc.

#include "kimik3/kimik3.hpp"
#include "model_programs.hpp"
#ifdef __CUDACC__
#include "kimik3/cuda.cuh"
#endif

namespace kimik3 {

struct Cuda;
template <Device device>
using BackendOf = std::conditional_t<device == Device::cpu, Cpu, Cuda>;

template <class Backend>
Context<Backend> context_for(int threads) {
    if constexpr (std::is_same_v<Backend, Cpu>)
        return Context<Cpu>(threads);
    else
        return Context<Backend>();
}

inline std::string description(const Context<Cpu>& ctx) { return fmt::format("cpu, {} threads", ctx.threads()); }

/// Scratch memory that a training step takes beside its activations; of no account on the CPU.
template <class Model>
Index scratch_of_step(Model&, const Context<Cpu>&, Index, Index) {
    return 0;
}

#ifdef __CUDACC__

inline std::string description(const Context<Cuda>& ctx) { return "cuda, " + ctx.name(); }

/// One sequence is taken through a step to see what operations ask for; it grows no faster than their number. A batch
/// that does not fit what the GPU has free is refused, with the largest that does.
template <class Model>
Index scratch_of_step(Model& model, const Context<Cuda>& ctx, Index batch, Index length) {
    const Index free = ctx.free_bytes();
    Index scratch = 0;
    const auto fits = [&](Index sequences) {
        return model.training_bytes(sequences, length) + sequences * scratch <= free;
    };
    if (fits(1)) {
        const std::vector<std::int32_t> ids(to_size(length), 0);
        model.forward_backward(ids, ids);
        model.zero_gradients();
        model.clear_balance();
        scratch = ctx.scratch_bytes();
    }
    if (fits(batch)) return batch * scratch;
    Index largest = 0;
    for (Index more = batch; more > 0; more /= 2)
        while (largest + more < batch && fits(largest + more)) largest += more;
    fail("too little GPU memory: a step of {} x {} tokens takes {} bytes, {} are free; --batch {} fits{}", batch,
         length, model.training_bytes(batch, length) + batch * scratch, free, largest,
         largest > 0 ? "" : " (nothing does: shorten --seq, or try --recompute)");
}

#endif

}  // namespace kimik3
