#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"

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
