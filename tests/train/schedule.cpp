#include "kimik3/train/schedule.hpp"

#include <boost/test/unit_test.hpp>
#include <limits>

#include "support/refusal.hpp"

using namespace kimik3;
using namespace kimik3::test;

namespace {

using enum ScheduleKind;
constexpr ScheduleKind kinds[] = {constant, linear, cosine, wsd};

}  // namespace

BOOST_AUTO_TEST_SUITE(schedule)

BOOST_AUTO_TEST_CASE(b48_warm_up_begins_above_zero_rises_and_reaches_the_highest_rate) {
    for (const ScheduleKind kind : kinds) {
        for (const double min_ratio : {0.0, 0.1, 1.0}) {
            const Schedule s({kind, 1e-3, min_ratio, 10, 100});
            BOOST_TEST(s.lr(0) > 0.0);
            for (Index step = 1; step < 10; ++step) BOOST_TEST((s.lr(step) > s.lr(step - 1) || min_ratio == 1.0));
            BOOST_TEST(s.lr(9) == 1e-3);
            BOOST_TEST(s.lr(10) == 1e-3);
        }
        BOOST_TEST(Schedule({.kind = kind, .max_lr = 1e-3, .total_steps = 100}).lr(0) == 1e-3);
    }
}

BOOST_AUTO_TEST_CASE(b48_every_rate_is_finite_and_within_its_limits) {
    for (const ScheduleKind kind : kinds) {
        for (const double min_ratio : {0.0, 0.1, 1.0 / 3.0, 1.0}) {
            for (const Index total : {1, 2, 10, 37}) {
                for (const Index warmup : {Index{0}, Index{1}, total / 2, total}) {
                    for (const Index decay : {Index{0}, (total - warmup) / 2, total - warmup}) {
                        const Schedule s({kind, 1e-3, min_ratio, warmup, total, kind == wsd ? decay : 0});
                        for (const Index step : {0, 1, 2, 5, 9, 10, 11, 36, 37, 38, 1000000000}) {
                            BOOST_TEST(s.lr(step) >= 1e-3 * min_ratio);
                            BOOST_TEST(s.lr(step) <= 1e-3);
                        }
                    }
                }
            }
        }
    }
}

BOOST_AUTO_TEST_CASE(each_schedule_goes_its_way) {
    const auto at = [](ScheduleKind kind, Index step) {
        const Index decay = kind == wsd ? 20 : 0;
        return Schedule({kind, 2.0, 0.5, 10, 110, decay}).lr(step);
    };
    for (const Index step : {10, 60, 109, 500}) BOOST_TEST(at(constant, step) == 2.0);
    BOOST_TEST(std::abs(at(linear, 60) - 1.5) < 1e-12);
    BOOST_TEST(std::abs(at(linear, 35) - 1.75) < 1e-12);
    BOOST_TEST(std::abs(at(cosine, 60) - 1.5) < 1e-12);
    BOOST_TEST(std::abs(at(cosine, 35) - (1.5 + 0.5 * std::sqrt(0.5))) < 1e-12);
    for (const Index step : {10, 60, 90}) BOOST_TEST(at(wsd, step) == 2.0);
    BOOST_TEST(std::abs(at(wsd, 100) - 1.5) < 1e-12);
    for (const ScheduleKind kind : {linear, cosine, wsd}) {
        for (Index step = 11; step < 120; ++step) BOOST_TEST(at(kind, step) <= at(kind, step - 1));
        for (const Index step : {110, 111, 5000}) BOOST_TEST(at(kind, step) == 1.0);
    }
}

BOOST_AUTO_TEST_CASE(nonsense_is_refused_in_a_sentence) {
    constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();
    const auto why = [](ScheduleOptions options) { return refusal([&] { Schedule{options}; }); };
    for (const double lr : {0.0, -1e-3, not_a_number, std::numeric_limits<double>::infinity()}) {
        BOOST_TEST(contains(why({.max_lr = lr}), "highest learning rate"));
    }
    for (const double ratio : {-0.1, 1.1, not_a_number}) {
        BOOST_TEST(contains(why({.min_ratio = ratio}), "lowest learning rate"));
    }
    BOOST_TEST(contains(why({.total_steps = 0}), "1 step or more, got 0"));
    BOOST_TEST(contains(why({.warmup_steps = 11, .total_steps = 10}), "0 to 10 steps, all there are, got 11"));
    BOOST_TEST(contains(why({.warmup_steps = -1, .total_steps = 10}), "got -1"));
    BOOST_TEST(contains(why({wsd, 1e-3, 0.1, 3, 10, 8}), "wsd lies in 0 to 7, got 8"));
    BOOST_TEST(contains(why({cosine, 1e-3, 0.1, 3, 10, 1}), "cosine lies in 0 to 0, got 1"));
    BOOST_CHECK_THROW(Schedule(ScheduleOptions{}).lr(-1), Error);
}

BOOST_AUTO_TEST_CASE(names_are_read_and_unknown_ones_are_answered_with_the_list) {
    for (const ScheduleKind kind : kinds) BOOST_TEST((schedule_from_name(name_of(kind)) == kind));
    BOOST_TEST(refusal([] { schedule_from_name("cosinus"); }) ==
               "a schedule is one of constant, linear, cosine, wsd; got 'cosinus'");
}

BOOST_AUTO_TEST_SUITE_END()
