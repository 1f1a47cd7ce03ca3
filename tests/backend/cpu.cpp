#include "kimik3/backend/cpu.hpp"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstdlib>
#include <string>

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

BOOST_AUTO_TEST_SUITE_END()
