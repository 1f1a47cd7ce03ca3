// The optimizer of k3_300m: norm of the gradient, AdamW and the clearing of gradients at the bytes they move (AdamW: 30
// a parameter with the copy in bf16), Muon in float and bf16 at the products of its iterations, the weights' copy.

#include "cuda/timing.cuh"
#include "kimik3/config/presets.hpp"
#include "kimik3/model/model_params.hpp"
#include "kimik3/model/parameter_layout.hpp"
#include "kimik3/ops/cuda/adamw.cuh"
#include "kimik3/ops/cuda/convert.cuh"
#include "kimik3/ops/cuda/gradient_norm.cuh"
#include "kimik3/ops/cuda/muon.cuh"
#include "kimik3/train/optimizer.hpp"

using namespace kimik3;
using namespace kimik3::bench;

namespace {

template <ModelConfig config>
ParameterTable parameters_of() {
    ParameterTable table;
    ModelParams<schedule_of<config>, Cuda, float, float> params;
    params.fields(config, FieldBinder<float, float>(table));
    return table;
}

double newton_schulz_flops(const ParameterTable& table) {
    double flops = 0;
    for (const ParameterGroup& group : parameter_groups(table.entries(), OptimizerKind::muon))
        for (Index b = 0; b < group.blocks; ++b) {
            const double rows = group.block_rows[to_size(b) % group.block_rows.size()], cols = group.cols,
                         side = (std::min)(rows, cols);
            flops += 5 * (4 * side * rows * cols + 2 * side * side * side);
        }
    return flops;
}

}  // namespace

int main(int argc, char** argv) {
    Table table(argc, argv);
    const auto& ctx = context();
    const ParameterTable parameters = parameters_of<presets::k3_300m>();
    const Index size = parameters.size();
    const Numbers<float> w(1, size, 1, 0.02f), g(1, size, 2, 1e-3f);
    const Buffer<bf16, Cuda> copy(size);
    const double count = size;
    std::vector<ElementPiece> pieces;
    for (Index at = 0; at < size; at += 16384) pieces.push_back({at, (std::min)(size - at, Index{16384})});
    const Buffer<double, Cuda> sums(static_cast<Index>(pieces.size()));
    table.add("norm of the gradient", median_ms(1, [&](int) {
        gradient_square_sums(ctx, std::span<const ElementPiece>(pieces), VectorView<const float>(g), sums.view());
    }), 4 * count);
    table.add("copy of the weights in bf16", median_ms(1, [&](int) {
        convert(ctx, VectorView<const float>(w), copy.view());
    }), 6 * count);
    table.add("clearing the gradients", median_ms(1, [&](int) { clear(ctx, g.vector()); }), 4 * count);
    for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::muon})
        for (const bool half : {true, false}) {
            Optimizer<Cuda, float> optimizer(parameters.entries(), size, {.kind = kind});
            const SteppedWeights<float> to{w.vector(), half ? copy.view() : VectorView<bf16>{}};
            const double bytes = count * (kind == OptimizerKind::adamw ? 28 : 20) + (half ? 2 * count : 0) + 4 * count;
            std::vector<double> times;
            for (int step = 0; step < 25; ++step) {
                cudaEvent_t events[2];
                for (cudaEvent_t& event : events) cudaEventCreate(&event);
                cudaEventRecord(events[0], ctx.stream());
                optimizer.step(ctx, 1e-3, to, VectorView<const float>(g));
                cudaEventRecord(events[1], ctx.stream());
                cudaEventSynchronize(events[1]);
                float ms = 0;
                cudaEventElapsedTime(&ms, events[0], events[1]);
                times.push_back(ms);
            }
            std::ranges::sort(times);
            table.add(fmt::format("a step of {}{}", name_of(kind), half ? " with a copy in bf16" : ""),
                      times[times.size() / 2], bytes,
                      half && kind == OptimizerKind::muon ? newton_schulz_flops(parameters) : 0.0);
        }
}
