#include "kimik3/train/spike_guard.hpp"

#include <boost/test/unit_test.hpp>

using namespace kimik3;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

}  // namespace

BOOST_AUTO_TEST_SUITE(spike_guard)

BOOST_AUTO_TEST_CASE(it_is_off_by_default) {
    SpikeGuard guard{SpikeGuardOptions{}};
    for (int step = 0; step < 100; ++step) guard.see(1.0);
    BOOST_TEST(guard.norm_limit() == infinity);
}

BOOST_AUTO_TEST_CASE(the_limit_follows_the_mean_slowly_after_a_spike_and_in_the_end_to_a_new_level) {
    SpikeGuard guard({.factor = 1.5, .memory = 0.9, .warmup = 3});
    for (const double norm : {1.0, 2.0, 3.0}) {
        BOOST_TEST(guard.norm_limit() == infinity);
        guard.see(norm);
    }
    BOOST_TEST(std::abs(guard.norm_limit() - 1.5 * 2.0) < 1e-12);
    guard.see(1e9);
    BOOST_TEST(std::abs(guard.norm_limit() - 1.5 * (2.0 + 0.25 * (3.0 - 2.0))) < 1e-12);
    for (int step = 0; step < 500; ++step) guard.see(400.0);
    BOOST_TEST(std::abs(guard.norm_limit() - 1.5 * 400.0) < 1e-6);
}

BOOST_AUTO_TEST_CASE(steps_go_on_after_gradients_of_zero) {
    SpikeGuard guard({.factor = 1.5, .memory = 0.9, .warmup = 3});
    for (int step = 0; step < 5; ++step) guard.see(0.0);
    BOOST_TEST(guard.norm_limit() == infinity);
    guard.see(2.0);
    BOOST_TEST(guard.norm_limit() > 0.0);
    BOOST_TEST(guard.norm_limit() < infinity);
}

BOOST_AUTO_TEST_CASE(a_restored_guard_goes_on_bit_for_bit) {
    const SpikeGuardOptions options{.factor = 2.0, .warmup = 2};
    SpikeGuard whole(options), resumed(options);
    for (const double norm : {0.1, 0.7, 0.3}) whole.see(norm);
    resumed.restore(whole.state());
    for (const double norm : {0.2, 5.0, 0.3}) {
        whole.see(norm);
        resumed.see(norm);
        BOOST_TEST(whole.norm_limit() == resumed.norm_limit());
    }
    BOOST_CHECK_THROW(resumed.restore({-1.0, 3}), Error);
    BOOST_CHECK_THROW(resumed.restore({not_a_number, 3}), Error);
    BOOST_CHECK_THROW(resumed.restore({1.0, -1}), Error);
}

BOOST_AUTO_TEST_CASE(nonsense_is_refused) {
    for (const double factor : {1.0, 0.5, -2.0, infinity, not_a_number}) {
        BOOST_CHECK_THROW(SpikeGuard({.factor = factor}), Error);
    }
    for (const double memory : {1.0, -0.1, not_a_number}) BOOST_CHECK_THROW(SpikeGuard({.memory = memory}), Error);
    BOOST_CHECK_THROW(SpikeGuard({.warmup = 0}), Error);
}

BOOST_AUTO_TEST_SUITE_END()
