#pragma once
// The matrix products of a training step of a model, without anything else: for every linear layer, every expert at the
// number of tokens that its router sent it, and the head, forward, gradient of the input and gradient of the weights,
// by Eigen's own product with the rows of the result split over the threads. All products share the memory of x, y and
// their gradients, which the caches therefore hold better than a model's; weights and their gradients are the model's
// own. With Muon, also the products of five Newton-Schulz steps of every block, one block a thread.

#include <string>

#include "kimik3/model/kimi_k3.hpp"
#include "kimik3/train/parameter_groups.hpp"
#include "support.hpp"

namespace kimik3::bench {

class Products {
public:
    /// model: after one training step on that many tokens whose balancing statistics have not been taken.
    template <class Model>
    Products(const Model& model, Index tokens, OptimizerKind kind) {
        Index widest = 0, layer = -1, expert = 0;
        std::string before;
        for (const ParameterInfo& tensor : model.parameters()) {
            if (!tensor.rule.decay || tensor.shape.size() != 2) continue;  // norms, convolutions, scorers
            Index rows = tokens;
            if (tensor.experts > 0) {
                layer = std::stoll(tensor.name.substr(std::string("model.layers.").size()));
                expert =
                    std::stoll(tensor.name.substr(tensor.name.find(".experts.") + std::string(".experts.").size()));
                rows = static_cast<Index>(model.balances()[to_size(layer)].load[expert]);
            }
            const Index out = tensor.shape[0], in = tensor.shape[1];
            const Index at = tensor.offset;
            list_.push_back({rows, {model.weights().data + at, out, in}, {model.gradients().data + at, out, in}});
            flops_ += 6.0 * static_cast<double>(rows * out * in);
            widest = (std::max)(widest, (std::max)(in, out));
        }
        for (Numbers* m : {&x_, &dx_, &y_, &dy_}) *m = Numbers(tokens, widest);
        for (const ParameterGroup& group : parameter_groups(model.parameters(), kind)) {
            for (Index b = 0; b < group.blocks; ++b) {
                const Index rows = group.block_rows[to_size(b) % group.block_rows.size()],
                            side = (std::min)(rows, group.cols), length = (std::max)(rows, group.cols);
                blocks_.push_back({side, length});
                flops_ += 5.0 * 2.0 * static_cast<double>(side * side * (2 * length + side));
            }
        }
    }

    double flops() const { return flops_; }

    void run() const {
        for (const Linear& l : list_) {
            const auto x = of(x_, l.rows, l.w.cols), dx = of(dx_, l.rows, l.w.cols);
            const auto y = of(y_, l.rows, l.w.rows), dy = of(dy_, l.rows, l.w.rows);
            product(y, [&](auto to, Index first, Index count) {
                to.noalias() = eigen(x.middle_rows(first, count)) * eigen(l.w).transpose();
            });
            product(dx, [&](auto to, Index first, Index count) {
                to.noalias() = eigen(dy.middle_rows(first, count)) * eigen(l.w);
            });
            product(l.dw, [&](auto to, Index first, Index count) {
                to.noalias() += eigen(dy.middle_cols(first, count)).transpose() * eigen(x);
            });
        }
    }

    void run_blocks() const {
        context().parallel_tasks(static_cast<Index>(blocks_.size()), [&](Index task, int thread) {
            const auto [side, length] = blocks_[to_size(task)];
            float* memory = context().workspace<float>(thread, 2 * side * length + 2 * side * side);
            const Map now = eigen({memory, side, length});
            Map next = eigen({memory + side * length, side, length});
            Map gram = eigen({memory + 2 * side * length, side, side});
            Map square = eigen({memory + 2 * side * length + side * side, side, side});
            for (int step = 0; step < 5; ++step) {
                gram.noalias() = now * now.transpose();
                square.noalias() = gram * gram;
                next.noalias() = square * now;
            }
        });
    }

private:
    struct Block {
        Index side, length;  // the smaller and the larger one
    };
    struct Linear {
        Index rows;
        MatrixView<float> w, dw;
    };

    static MatrixView<float> of(const Numbers& memory, Index rows, Index cols) {
        return {memory.view.data, rows, cols};
    }
    using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    using Map = Eigen::Map<RowMajor, 0, Eigen::OuterStride<>>;

    static Map eigen(MatrixView<float> m) { return {m.data, m.rows, m.cols, Eigen::OuterStride<>(m.stride)}; }

    template <class Body>
    static void product(MatrixView<float> to, Body&& body) {
        context().parallel(to.rows, 8, [&](Index first, Index last) {
            body(eigen(to.middle_rows(first, last - first)), first, last - first);
        });
    }

    std::vector<Linear> list_;
    std::vector<Block> blocks_;
    Numbers x_{0, 0}, dx_{0, 0}, y_{0, 0}, dy_{0, 0};
    double flops_ = 0;
};

}  // namespace kimik3::bench
