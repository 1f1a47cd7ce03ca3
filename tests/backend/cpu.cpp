#include "kimik3/backend/cpu.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstdlib>
#include <string>

#include "support/refusal.hpp"

using namespace kimik3;

BOOST_AUTO_TEST_SUITE(backend_cpu)

/// In a process of its own, of a user who has one already.
BOOST_AUTO_TEST_CASE(threads_that_the_system_refuses_are_an_error_that_says_how_many_there_are) {
    enum { refused = 3, started = 4, another_error = 5 };
    const pid_t child = ::fork();
    if (child == 0) {
        std::signal(SIGABRT, SIG_DFL);
        const rlimit one{1, 1};
        if ((::geteuid() == 0 && ::setuid(65534) != 0) || ::setrlimit(RLIMIT_NPROC, &one) != 0) std::_Exit(started);
        try {
            const Context<Cpu> ctx(4);
            std::_Exit(started);
        } catch (const Error& error) {
            const std::string text = error.what();
            const bool said = text.starts_with("4 threads are wanted, the system gives 1: ");
            std::_Exit(said && Context<Cpu>(1).threads() == 1 ? refused : another_error);
        } catch (...) {
            std::_Exit(another_error);
        }
    }
    BOOST_REQUIRE(child > 0);
    int status = 0;
    ::waitpid(child, &status, 0);
    BOOST_REQUIRE(WIFEXITED(status));
    if (WEXITSTATUS(status) == started) BOOST_TEST_MESSAGE("this system limits no threads");
    else BOOST_TEST(WEXITSTATUS(status) == refused);
}

BOOST_AUTO_TEST_CASE(an_exception_of_any_thread_reaches_the_caller_and_the_team_works_on) {
    const Context<Cpu> ctx(3);
    for (Index broken = 0; broken < 50; ++broken) {
        const auto body = [&](Index task, int) { require(task != broken, "task {} is broken", task); };
        BOOST_TEST(test::refusal([&] { ctx.parallel_tasks(50, body); }) == fmt::format("task {} is broken", broken));
        std::atomic<Index> done = 0;
        ctx.parallel_tasks(50, [&](Index, int) { ++done; });
        BOOST_TEST(done == 50);
    }
}

BOOST_AUTO_TEST_CASE(a_loop_in_the_body_of_a_loop_runs_on_its_thread) {
    const Context<Cpu> ctx(3);
    for (Index inner : {1, 8}) {
        std::atomic<Index> done = 0, elsewhere = 0;
        ctx.parallel_tasks(8, [&](Index, int outer) {
            ctx.parallel_tasks(inner, [&](Index, int thread) { ++done, elsewhere += thread != outer; });
        });
        BOOST_TEST(done == 8 * inner);
        BOOST_TEST(elsewhere == 0);
    }
}

BOOST_AUTO_TEST_CASE(two_threads_in_one_context_are_an_error_and_no_race) {
    const Context<Cpu> ctx(2), copy = ctx;
    std::atomic<bool> inside = false, refused = false;
    std::thread other([&] {
        while (!inside) std::this_thread::yield();
        refused = test::refusal([&] { copy.parallel_tasks(2, [](Index, int) {}); }).starts_with("two threads use one");
        inside = false;
    });
    ctx.parallel_tasks(1, [](Index, int) {});
    ctx.parallel_tasks(2, [&](Index task, int) {
        if (task != 0) return;
        inside = true;
        while (inside) std::this_thread::yield();
    });
    other.join();
    BOOST_TEST(refused);
    copy.parallel_tasks(2, [](Index, int) {});
}

BOOST_AUTO_TEST_CASE(a_process_made_by_fork_works_and_ends_though_the_threads_stay_with_its_parent) {
    auto ctx = std::make_unique<Context<Cpu>>(3);
    ctx->parallel_tasks(9, [](Index, int) {});
    const pid_t child = ::fork();
    if (child == 0) {
        ::alarm(20);
        std::atomic<Index> done = 0;
        ctx->parallel_tasks(9, [&](Index, int) { ++done; });
        ctx.reset();
        std::_Exit(done == 9 ? 0 : 1);
    }
    BOOST_REQUIRE(child > 0);
    int status = 0;
    ::waitpid(child, &status, 0);
    BOOST_TEST((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

BOOST_AUTO_TEST_SUITE_END()
