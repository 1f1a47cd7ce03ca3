// Matrix products of a training step of k3_300m in bf16, 32,768 tokens: forward (nt), gradient of the input (nn) and of
// the weights (tn, added to float). Floors: bytes of operands and result, and operations.

#include "cuda/timing.cuh"
#include "kimik3/ops/cuda/matmul.cuh"

using namespace kimik3;
using namespace kimik3::bench;

namespace {

struct Shape {
    const char* name;
    Index rows, in, out, apart = 0;  // apart: of y's rows, where they are longer
};

void measure(Table& table, const Shape& s) {
    const double x = 2.0 * s.rows * s.in, y = 2.0 * s.rows * s.out, w = 2.0 * s.in * s.out;
    const double flops = 2.0 * s.rows * s.in * s.out;
    const std::string size = " " + std::to_string(s.in) + " -> " + std::to_string(s.out);
    const std::string name = s.name + size;
    if (!table.wants(name)) return;
    const int sets = (std::min)(sets_for(x + y), 8);
    std::vector<Numbers<bf16>> xs, ys;
    for (int set = 0; set < sets; ++set) {
        xs.emplace_back(s.rows, s.in, 2 * set);
        ys.emplace_back(s.rows, (std::max)(s.out, s.apart), 2 * set + 1);
        ys.back().view.cols = s.out;
    }
    const Numbers<bf16> weights(s.out, s.in, 100);
    const Numbers<float> gradient(s.out, s.in, 101);
    const auto& ctx = context();
    table.add(name + " nt", median_ms(sets, [&](int set) {
        matmul_nt(ctx, xs[set].view, weights.view, ys[set].view, Add::no);
    }), x + y + w, flops);
    table.add(name + " nn", median_ms(sets, [&](int set) {
        matmul_nn(ctx, ys[set].view, weights.view, xs[set].view, Add::no);
    }), x + y + w, flops);
    table.add(name + " nn add", median_ms(sets, [&](int set) {
        matmul_nn(ctx, ys[set].view, weights.view, xs[set].view, Add::yes);
    }), 2 * x + y + w, flops);
    table.add(name + " tn", median_ms(sets, [&](int set) {
        matmul_tn(ctx, ys[set].view, xs[set].view, gradient.view, Add::yes);
    }), x + y + 4 * w, flops);
}

}  // namespace

int main(int argc, char** argv) {
    Table table(argc, argv);
    const Index n = 32768;
    const Shape shapes[] = {{"KDA's q k v g f", n, 640, 2688, 2704},
                            {"KDA's b, padded", n, 640, 8, 2704},
                            {"KDA's q k v", n, 640, 1920},
                            {"KDA's g f b", n, 640, 776, 2704},
                            {"KDA's f_b", n, 128, 640},
                            {"KDA's and MLA's o", n, 640, 640},
                            {"MLA's q_a kv_a g", n, 640, 1088},
                            {"MLA's q_b", n, 256, 960},
                            {"MLA's kv_b", n, 128, 1280},
                            {"latent down, shared gate up", n, 640, 1472},
                            {"latent up", n, 320, 640},
                            {"shared down", n, 576, 640},
                            {"dense gate up", n, 640, 6144},
                            {"dense down", n, 3072, 640},
                            {"head, 4096 rows", 4096, 640, 49152}};
    for (const Shape& shape : shapes) measure(table, shape);
}
