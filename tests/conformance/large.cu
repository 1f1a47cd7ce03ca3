// Sizes past 65,535 blocks and past 2^31 elements (b70): the last rows are those of a small case. Needs 40 GiB.
#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"
#include "kimik3/cuda.cuh"

using namespace kimik3;
using namespace kimik3::test;

namespace {

/// to = values again and again.
void repeat(const std::vector<float>& values, VectorView<float> to) {
    const Index period = static_cast<Index>(values.size());
    const Buffer<float, Cuda> few(period);
    copy_from_host(cuda(), values, few.view());
    const VectorView<const float> from = few.view();
    gpu::for_each(cuda(), to.size, [=] __device__(Index i) { to[i] = from[i % period]; });
    cuda().synchronise();
}

/// A matrix [rows, cols] on the GPU: row n is row n % period of random ones, or all is zero.
class Periodic {
public:
    Periodic(Index rows, Index cols, Index period, std::uint64_t seed, double scale = 1.0)
        : memory_(rows * cols), rows_(rows), cols_(cols) {
        Philox numbers(seed);
        std::vector<float> values(to_size(period * cols));
        for (float& value : values) value = static_cast<float>(scale * numbers.normal());
        repeat(values, memory_.view());
    }
    Periodic(Index rows, Index cols) : memory_(rows * cols), rows_(rows), cols_(cols) {}

    MatrixView<float> view() const { return {memory_.data(), rows_, cols_}; }
    VectorView<float> vector() const { return memory_.view(); }
    std::vector<float> rows(Index first, Index count) const {
        std::vector<float> memory;
        on_host(cuda(), MatrixView<const float>(view().middle_rows(first, count)), memory);
        return memory;
    }

private:
    Buffer<float, Cuda> memory_;
    Index rows_, cols_;
};

bool room_for(Index elements) {
    const bool room = cuda().free_bytes() > 4 * elements + (Index{1} << 30);
    if (!room) BOOST_TEST_MESSAGE("left out: the GPU has too little free memory");
    return room;
}

/// The last count rows are the first ones.
void check_ends(const char* name, const Periodic& m, Index count) {
    const auto first = m.rows(0, count), last = m.rows(m.view().rows - count, count);
    BOOST_CHECK_MESSAGE(first == last && first == first, name << ": the last rows are not the first ones");
}

}  // namespace

BOOST_AUTO_TEST_SUITE(conformance_large)

BOOST_AUTO_TEST_CASE(b70_logits_past_two_to_the_31_elements) {
    const Index rows = 43692, vocab = 49152;
    if (!room_for(rows * vocab)) return;
    const Periodic logits(rows, vocab), loss(1, rows);
    const Buffer<std::int32_t, Cuda> targets(rows);  // all 0
    const std::span<const std::int32_t> ids(targets.data(), to_size(rows));
    cross_entropy_backward(cuda(), logits.view(), ids, 1.0, loss.vector());
    BOOST_CHECK_SMALL(double{loss.rows(0, 1).back()} - 10.80267, 1e-4);
    const auto last = logits.rows(rows - 1, 1);
    BOOST_CHECK_SMALL(double{last[0]} - (1.0 / 49152 - 1.0), 1e-6);
    BOOST_CHECK_SMALL(double{last[1]} - 1.0 / 49152, 1e-9);
    BOOST_CHECK_EQUAL(last.back(), last[1]);
}

BOOST_AUTO_TEST_CASE(b70_products_and_sums_past_two_to_the_31_elements) {
    const Index rows = 65601, cols = 32768, inner = 3;
    if (!room_for(rows * cols)) return;
    const Periodic a(rows, inner, 1, 1), b(cols, inner, cols, 2), c(rows, cols), r(1, rows);
    matmul_nt(cuda(), a.view(), b.view(), c.view(), Add::no);
    check_ends("a b^T", c, 1);
    const auto first = c.rows(0, 1), left = a.rows(0, 1), right = b.rows(cols - 1, 1);
    BOOST_CHECK_SMALL(first.back() - (left[0] * right[0] + left[1] * right[1] + left[2] * right[2]), 1e-4f);
    const Periodic w(1, cols, 1, 3), dw(1, cols);
    rms_norm_forward(cuda(), c.view(), w.vector(), 1e-5, c.view(), r.vector());
    check_ends("norm", c, 1);
    rms_norm_backward(cuda(), c.view(), c.view(), w.vector(), r.vector(), c.view(), dw.vector());
    check_ends("dx", c, 1);
}

BOOST_AUTO_TEST_CASE(b70_kda_past_two_to_the_31_elements) {
    const Index heads = 64, key = 128, value = 8, length = 8, count = 32769, rows = count * length;
    if (!room_for(4 * rows * heads * key)) return;
    const Periodic q(rows, heads * key, length, 1, 0.1), k(rows, heads * key, length, 2, 0.1),
        v(rows, heads * value, length, 3), g(rows, heads * key), beta(rows, heads, length, 4, 0.1),
        o(rows, heads * value);
    const Sequences seq = Sequences::uniform(count, length);
    kda_recurrent_forward(cuda(), seq, heads, {q.view(), k.view(), v.view(), g.view(), beta.view(), {}}, o.view(), {});
    check_ends("o", o, length);
}

BOOST_AUTO_TEST_CASE(b70_more_than_65535_blocks) {
    const Index count = 70001, width = 40;
    const Sequences seq = Sequences::uniform(count, 1);
    const Periodic x(count, width, 1, 1), w(width, 4, width, 2), y(count, width);
    short_conv_forward(cuda(), seq, x.view(), w.view(), {}, y.view(), {});
    check_ends("short convolution", y, 1);
    const MlaHeads heads{2, 8, 4, 8};
    const Periodic q(count, 24, 1, 3), kv(count, 32, 1, 4), shared(count, 4, 1, 5), o(count, 16), lse(count, 2);
    causal_attention_forward(cuda(), seq, heads, q.view(), kv.view(), shared.view(), o.view(), lse.view());
    check_ends("attention", o, 1);
    const Periodic d_o(count, 16, 1, 6), dq(count, 24), dkv(count, 32), dshared(count, 4);
    causal_attention_backward(cuda(), seq, heads, d_o.view(), q.view(), kv.view(), shared.view(), o.view(), lse.view(),
                              dq.view(), dkv.view(), dshared.view());
    check_ends("dq", dq, 1), check_ends("dkv", dkv, 1), check_ends("dk_shared", dshared, 1);
}

BOOST_AUTO_TEST_CASE(b73_many_tokens_of_one_id_add_up_in_order) {
    const Index count = 70001, width = 33;
    const Buffer<std::int32_t, Cuda> ids(count);  // all 0
    const std::span<const std::int32_t> tokens(ids.data(), to_size(count));
    const Periodic dy(count, width, count, 1), dtable(2, width), again(2, width);
    embedding_backward(cuda(), tokens, dy.view(), dtable.view());
    embedding_backward(cuda(), tokens, dy.view(), again.view());
    const auto values = dy.rows(0, count), found = dtable.rows(0, 1);
    BOOST_CHECK(found == again.rows(0, 1));
    for (Index c = 0; c < width; ++c) {
        double sum = 0, sizes = 0;
        for (Index n = 0; n < count; ++n) {
            sum += double{values[to_size(n * width + c)]};
            sizes += std::abs(double{values[to_size(n * width + c)]});
        }
        BOOST_CHECK_SMALL((double{found[to_size(c)]} - sum) / sizes, 1e-5);
    }
}

BOOST_AUTO_TEST_SUITE_END()
