#include "kimik3/core/atomic_file.hpp"

#include <sys/resource.h>
#include <sys/wait.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <fstream>

namespace fs = std::filesystem;
using kimik3::AtomicFile;

namespace {

struct Folder {
    fs::path path = fs::temp_directory_path() / fmt::format("kimik3_atomic_{}", ::getpid());
    fs::path file = path / "f";
    Folder() {
        fs::create_directories(path);
        std::ofstream(file) << "old";
    }
    ~Folder() { fs::remove_all(path); }

    std::string content() const {
        std::ifstream stream(file);
        return {std::istreambuf_iterator<char>(stream), {}};
    }
    auto files() const { return std::distance(fs::directory_iterator(path), {}); }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(atomic_file, Folder)

BOOST_AUTO_TEST_CASE(the_old_file_stays_until_commit_and_the_new_one_is_whole) {
    {
        AtomicFile out(file);
        out.write("0123456789", 10);
        out.rewrite(2, "ab", 2);
        BOOST_CHECK_THROW(out.rewrite(9, "ab", 2), kimik3::Error);
        BOOST_CHECK_THROW(out.rewrite(-1, "ab", 2), kimik3::Error);
        out.write("x", 1);
        BOOST_TEST(content() == "old");
        out.commit();
        BOOST_TEST(content() == "01ab456789x");
        BOOST_CHECK_THROW(out.commit(), kimik3::Error);
    }
    BOOST_TEST(content() == "01ab456789x");
    BOOST_TEST(files() == 1);
}

BOOST_AUTO_TEST_CASE(without_commit_nothing_changes_and_nothing_is_left) {
    AtomicFile(file).write("new", 3);
    BOOST_TEST(content() == "old");
    BOOST_TEST(files() == 1);
}

BOOST_AUTO_TEST_CASE(only_a_regular_file_is_replaced) {
    BOOST_CHECK_THROW(AtomicFile{path}, kimik3::Error);
    BOOST_CHECK_THROW(AtomicFile{"/dev/full"}, kimik3::Error);
    BOOST_CHECK_THROW(AtomicFile{path / "absent" / "f"}, kimik3::Error);
}

BOOST_AUTO_TEST_CASE(b55_a_write_that_fails_is_reported_and_leaves_the_old_file) {
    rlimit usual{};
    ::getrlimit(RLIMIT_FSIZE, &usual);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const std::string data(100000, 'x');
    for (const rlim_t limit : {0u, 1000u, 50000u, 99000u}) {
        std::string sentence;
        {
            AtomicFile out(file);
            const rlimit low{limit, usual.rlim_max};
            ::setrlimit(RLIMIT_FSIZE, &low);
            try {
                out.write(data.data(), data.size());
            } catch (const kimik3::Error& error) {
                sentence = error.what();
            }
            ::setrlimit(RLIMIT_FSIZE, &usual);
        }
        BOOST_TEST(sentence == file.string() + ": cannot write the file: File too large");
        BOOST_TEST(content() == "old");
        BOOST_TEST(files() == 1);
    }
    std::signal(SIGXFSZ, handler);
}

BOOST_AUTO_TEST_CASE(b55_what_a_killed_writer_left_goes_with_the_next_one_and_what_a_living_one_has_stays) {
    const pid_t child = ::fork();
    if (child == 0) {
        AtomicFile(file).write("half", 4);
        AtomicFile out(file);
        out.write("half", 4);
        ::kill(::getpid(), SIGKILL);
    }
    BOOST_REQUIRE(child > 0);
    int status = 0;
    ::waitpid(child, &status, 0);
    BOOST_TEST(WIFSIGNALED(status));
    BOOST_TEST(content() == "old");
    BOOST_TEST(files() == 2);
    std::ofstream(path / "f.7-1.old.tmp");  // of somebody else
    AtomicFile living(file);
    living.write("living", 6);
    BOOST_TEST(files() == 3);
    {
        AtomicFile out(file);
        out.write("new", 3);
        out.commit();
    }
    BOOST_TEST(content() == "new");
    living.commit();
    BOOST_TEST(content() == "living");
    BOOST_TEST(files() == 2);
}

BOOST_AUTO_TEST_CASE(a_file_keeps_its_permission_bits_and_a_new_one_has_those_of_the_umask) {
    const auto bits_after = [](const fs::path& target) {
        kimik3::write_text_file(target, "new");
        return static_cast<int>(fs::status(target).permissions());
    };
    for (const int bits : {0600, 0444, 0777}) {
        ::chmod(file.c_str(), static_cast<mode_t>(bits));
        BOOST_TEST(bits_after(file) == bits);
    }
    const mode_t usual = ::umask(027);
    BOOST_TEST(bits_after(path / "g") == 0640);
    ::umask(usual);
}

BOOST_AUTO_TEST_CASE(a_link_stays_and_the_file_that_it_leads_to_is_replaced) {
    fs::create_symlink("f", path / "link");
    AtomicFile out(path / "link");
    out.write("new", 3);
    out.commit();
    BOOST_TEST(fs::is_symlink(path / "link"));
    BOOST_TEST(content() == "new");
    BOOST_TEST(files() == 2);
    fs::create_symlink("nowhere", path / "lost");
    BOOST_CHECK_THROW(AtomicFile{path / "lost"}, kimik3::Error);
    BOOST_TEST(files() == 3);
}

BOOST_AUTO_TEST_SUITE_END()
