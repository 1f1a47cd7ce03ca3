#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"
#include "kimik3/ops/cpu/adamw.hpp"
#include "kimik3/ops/cpu/gradient_norm.hpp"
#include "kimik3/ops/cpu/muon.hpp"
#include "kimik3/ops/cuda/adamw.cuh"
#include "kimik3/ops/cuda/gradient_norm.cuh"
#include "kimik3/ops/cuda/muon.cuh"

using namespace kimik3;
using namespace kimik3::test;

BOOST_AUTO_TEST_SUITE(conformance_optimizer)

BOOST_AUTO_TEST_CASE(square_sums) {
    const std::vector<ElementPiece> pieces{{0, 1}, {3, 0}, {5, 20000}, {20005, 333}};
    Both g = vector_of(21000, 1), sums = empty_vector(4);
    Pair<double, double> found(1, 4, 0);
    gradient_square_sums<double>(cpu(), pieces, g.cv(), found.cv()),
        gradient_square_sums<float>(cuda(), pieces, g.gv(), found.gv());
    KIMIK3_CHECK_CLOSE(found.found(), found.expected(), 1e-12);
}

BOOST_AUTO_TEST_CASE(adamw) {
    const std::vector<AdamwPiece> pieces{{0, 0, 1, true}, {3, 16, 20000, false}, {20005, 20032, 333, true}};
    Both g = vector_of(21000, 1), w = vector_of(21000, 2), m = vector_of(21000, 3, 0.1), v = vector_of(21000, 4);
    for (Index i = 0; i < 21000; ++i) v.host(0, i) = std::abs(v.host(0, i));
    v.send();
    for (const Index step : {1, 2, 3}) {
        const AdamwRule rule{.lr = 1e-2, .decay = 0.1, .scale = 0.5, .step = step};
        adamw_step(cpu(), std::span(pieces), rule, g.cv(), w.cv(), m.cv(), v.cv()),
            adamw_step(cuda(), std::span(pieces), rule, g.gv(), w.gv(), m.gv(), v.gv());
    }
    check_same("w", w), check_same("m", m), check_same("v", v);
}

/// What a model in bf16 reads follows the weights, at the pieces and nowhere else.
void check_copy(Both& w, Half& copy, const std::vector<std::pair<Index, Index>>& pieces) {
    const auto weights = w.found();
    const auto found = copy.found();
    std::vector<float> expected(found.size(), 5.0f);
    for (const auto& [offset, count] : pieces)
        for (Index i = offset; i < offset + count; ++i)
            expected[to_size(i)] = static_cast<float>(bf16(weights[to_size(i)]));
    BOOST_CHECK(std::ranges::equal(found, expected, {}, [](bf16 b) { return static_cast<float>(b); }));
}

BOOST_AUTO_TEST_CASE(the_copy_in_bf16_follows_the_weights) {
    poison_workspaces(cuda());  // in which Muon's products work
    const std::vector<AdamwPiece> pieces{{0, 0, 1, true}, {3, 16, 20000, false}, {20005, 20032, 333, true},
                                         {20352, 20384, 643, true}};
    const std::vector<MuonBlock> blocks{{21008, 24, 40, true}, {22000, 24, 40, true}, {23001, 40, 24, true}};
    const Index size = 24000;
    Both g = vector_of(size, 1), w = vector_of(size, 2), m = vector_of(size, 3, 0.1), v = vector_of(size, 4);
    for (Index i = 0; i < size; ++i) v.host(0, i) = std::abs(v.host(0, i));
    v.send();
    Half copy(1, size, 0);
    copy.host.fill(5), copy.send();
    for (const double limit : {0.0, 1.0}) {  // a step that is not taken, and one that is
        StepNumbers numbers = StepNumbers::of({.lr = 1e-2, .decay = 0.1, .scale = 0.5});
        numbers.applied = limit > 0.0;
        const StepNumbers* told = cuda().on_device(std::span<const StepNumbers>(&numbers, 1));
        adamw_step(cuda(), std::span(pieces), AdamwRule{}, told, g.gv(), w.gv(), m.gv(), v.gv(), copy.gv());
        muon_step(cuda(), std::span(blocks), MuonRule{}, told, g.gv(), w.gv(), m.gv(), copy.gv());
        if (numbers.applied)
            check_copy(w, copy, {{0, 1}, {3, 20000}, {20005, 333}, {20352, 643}, {21008, 960}, {22000, 960},
                                 {23001, 960}});
        else check_copy(w, copy, {});
    }
    adamw_step(cpu(), std::span(pieces), {.lr = 1e-2, .decay = 0.1, .scale = 0.5}, g.cv(), w.cv(), m.cv(), v.cv());
    muon_step(cpu(), std::span(blocks), {.lr = 1e-2, .decay = 0.1, .scale = 0.5}, g.cv(), w.cv(), m.cv());
    check_same("w", w, 2e-3), check_same("m", m), check_same("v", v);  // the iteration is in bf16
}

BOOST_AUTO_TEST_CASE(muon_takes_many_blocks_of_a_few_shapes) {
    std::vector<MuonBlock> blocks;
    Index size = 0;
    for (const auto& [rows, cols] : {std::pair<Index, Index>{33, 65}, {65, 33}, {1, 3}})
        for (Index b = 0; b < 40; ++b, size += rows * cols) blocks.push_back({size, rows, cols, b % 2 == 0});
    Both g = vector_of(size, 1), w = vector_of(size, 2), m = vector_of(size, 3, 0.1);
    const MuonRule rule{.lr = 1e-2, .decay = 0.1, .scale = 0.5};
    muon_step(cpu(), std::span(blocks), rule, g.cv(), w.cv(), m.cv()),
        muon_step(cuda(), std::span(blocks), rule, g.gv(), w.gv(), m.gv());
    check_same("w", w, 1e-4), check_same("m", m);
}

BOOST_AUTO_TEST_CASE(muon) {
    for (const auto& [rows, cols] : {std::pair<Index, Index>{1, 1}, {5, 33}, {33, 5}, {64, 130}, {130, 130}}) {
        const std::vector<MuonBlock> blocks{{16, rows, cols, true}, {16 + rows * cols, rows, cols, false}};
        const Index size = 32 + 2 * rows * cols;
        Both g = vector_of(size, 1), w = vector_of(size, 2), m = vector_of(size, 3, 0.1);
        const MuonRule rule{.lr = 1e-2, .decay = 0.1, .scale = 0.5};
        muon_step(cpu(), std::span(blocks), rule, g.cv(), w.cv(), m.cv()),
            muon_step(cuda(), std::span(blocks), rule, g.gv(), w.gv(), m.gv());
        check_same("w", w, 1e-4), check_same("m", m);
    }
}

BOOST_AUTO_TEST_SUITE_END()
