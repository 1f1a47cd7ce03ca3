#include "kimik3/core/atomic_folder.hpp"

#include <sys/syscall.h>
#include <sys/wait.h>

#include <atomic>
#include <boost/test/unit_test.hpp>
#include <csignal>
#include <fstream>
#include <thread>

#include "io/files.hpp"

namespace {
int exchange_error = 0;  // of an exchange, as file systems without it give; 0: none
bool gone = false;       // whether the new folder is lost at that moment
}  // namespace

/// In front of the C library's.
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) noexcept {
    if (exchange_error == 0) return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
    if (gone) std::filesystem::remove_all(from);
    errno = exchange_error;
    return -1;
}

namespace fs = std::filesystem;
using namespace kimik3;
using namespace kimik3::test;

namespace {

/// Writes a folder of one file "f".
void save(const fs::path& target, std::string_view content) {
    AtomicFolder folder(target);
    put((folder.path() / "f").string(), content);
    folder.commit();
}

}  // namespace

BOOST_AUTO_TEST_SUITE(atomic_folder)

BOOST_AUTO_TEST_CASE(the_old_folder_stays_until_commit_and_the_new_one_is_whole) {
    const TemporaryFolder around;
    const fs::path target = around / "run";
    save(target, "old");
    put((target / "of the old one").string(), "");
    {
        AtomicFolder folder(target);
        put((folder.path() / "f").string(), "new");
        BOOST_TEST(get((target / "f").string()) == "old");
        folder.commit();
        BOOST_TEST(get((target / "f").string()) == "new");
    }
    BOOST_TEST(get((target / "f").string()) == "new");
    BOOST_TEST(!fs::exists(target / "of the old one"));
    BOOST_TEST(around.size() == 1);
}

BOOST_AUTO_TEST_CASE(without_commit_nothing_changes_and_nothing_is_left) {
    const TemporaryFolder around;
    const fs::path target = around / "run";
    { const AtomicFolder folder(target); }
    BOOST_TEST(around.size() == 0);
    save(target, "old");
    {
        const AtomicFolder folder(target);
        put((folder.path() / "f").string(), "half");
    }
    BOOST_TEST(get((target / "f").string()) == "old");
    BOOST_TEST(around.size() == 1);
}

BOOST_AUTO_TEST_CASE(b55_a_file_system_without_exchange_has_the_new_folder_or_keeps_the_old_one) {
    const TemporaryFolder around;
    const fs::path target = around / "run";
    save(target, "old");
    put((target / "of the old one").string(), "");
    const std::string left = fmt::format("{}.{}-0.tmp.old", target.string(), ::getpid());
    fs::create_directory(left);  // by a killed process that had our number
    put(left + "/f", "older");
    for (const int reason : {EINVAL, ENOSYS, EOPNOTSUPP}) {
        exchange_error = reason;
        save(target, "new");
        BOOST_TEST(get((target / "f").string()) == "new");
        BOOST_TEST(!fs::exists(target / "of the old one"));
        BOOST_TEST(around.size() == 1);
    }
    gone = true;
    KIMIK3_CHECK_REFUSED(save(target, "lost"), "cannot replace the folder");
    gone = false;
    BOOST_TEST(get((target / "f").string()) == "new");
    exchange_error = EACCES;  // another reason is no lack of it
    KIMIK3_CHECK_REFUSED(save(target, "newer"), "cannot replace the folder: Permission denied");
    exchange_error = 0;
    BOOST_TEST(get((target / "f").string()) == "new");
    BOOST_TEST(around.size() == 1);
}

BOOST_AUTO_TEST_CASE(b55_a_killed_save_leaves_the_old_folder_or_the_new_one) {
    const TemporaryFolder around;
    const fs::path target = around / "run";
    for (bool committed : {false, true}) {
        save(target, "old");
        const pid_t child = ::fork();
        if (child == 0) {
            AtomicFolder folder(target);
            put((folder.path() / "f").string(), "new");
            if (committed) folder.commit();
            ::kill(::getpid(), SIGKILL);
        }
        BOOST_REQUIRE(child > 0);
        int status = 0;
        ::waitpid(child, &status, 0);
        BOOST_TEST(WIFSIGNALED(status));
        BOOST_TEST(get((target / "f").string()) == (committed ? "new" : "old"));
        fs::create_directory(target.string() + ".7-1.old.tmp");  // of somebody else
        save(target, "after");  // what the killed one left is in nobody's way, and goes
        BOOST_TEST(get((target / "f").string()) == "after");
        BOOST_TEST(around.size() == 2);
    }
}

BOOST_AUTO_TEST_CASE(a_folder_and_its_files_keep_their_permission_bits) {
    const TemporaryFolder around;
    const fs::path target = around / "run";
    save(target, "old");
    ::chmod(target.c_str(), 0750);
    ::chmod((target / "f").c_str(), 0600);
    save(target, "new");
    BOOST_TEST(get((target / "f").string()) == "new");
    BOOST_CHECK(fs::status(target).permissions() == fs::perms(0750));
    BOOST_CHECK(fs::status(target / "f").permissions() == fs::perms(0600));
}

BOOST_AUTO_TEST_CASE(a_slash_at_the_end_is_the_same_folder) {
    const TemporaryFolder around;
    save(around / "run/", "one");
    save(around / "run", "two");
    BOOST_TEST(get(around / "run/f") == "two");
    BOOST_TEST(around.size() == 1);
}

BOOST_AUTO_TEST_CASE(a_link_stays_and_the_folder_that_it_leads_to_is_replaced) {
    const TemporaryFolder around;
    save(around / "run", "old");
    fs::create_directory_symlink("run", around / "link");
    save(around / "link", "new");
    BOOST_TEST(fs::is_symlink(around / "link"));
    BOOST_TEST(get(around / "run/f") == "new");
    BOOST_TEST(around.size() == 2);
    fs::create_directory_symlink("nowhere", around / "lost");
    KIMIK3_CHECK_REFUSED(AtomicFolder(around / "lost"), "leads to nothing: No such file");
    put(around / "file", "kept");
    fs::create_symlink("file", around / "to a file");
    KIMIK3_CHECK_REFUSED(AtomicFolder(around / "to a file"), "only a folder is replaced by a folder");
    BOOST_TEST(get(around / "file") == "kept");
}

BOOST_AUTO_TEST_CASE(two_writers_of_one_folder_do_not_mix) {
    const TemporaryFolder around;
    AtomicFolder first(around / "run"), second(around / "run");
    put((first.path() / "a").string(), "first");
    put((second.path() / "b").string(), "second");
    second.commit();
    BOOST_TEST(get(around / "run/b") == "second");
    first.commit();
    BOOST_TEST(get(around / "run/a") == "first");
    BOOST_TEST(!fs::exists(around / "run/b"));
}

BOOST_AUTO_TEST_CASE(writers_that_start_at_one_moment_leave_each_other_alone) {
    const TemporaryFolder around;
    std::atomic<int> lost = 0;
    const auto begin = [&] {
        for (int n = 0; n < 300; ++n) {
            const AtomicFolder folder(around / "run");
            if (!std::ofstream(folder.path() / "f").is_open()) ++lost;
        }
    };
    std::vector<std::jthread> writers;
    for (int w = 0; w < 4; ++w) writers.emplace_back(begin);
    writers.clear();
    BOOST_CHECK_EQUAL(lost, 0);
    BOOST_TEST(fs::is_empty(around / ""));
}

BOOST_AUTO_TEST_CASE(only_a_folder_in_a_writable_folder_is_replaced) {
    const TemporaryFolder around;
    put(around / "file", "kept");
    KIMIK3_CHECK_REFUSED(AtomicFolder(around / "file"), "only a folder is replaced by a folder");
    KIMIK3_CHECK_REFUSED(AtomicFolder(around / "absent/run"), "No such file or directory");
    KIMIK3_CHECK_REFUSED(AtomicFolder(around / "file/run"), "Not a directory");
    KIMIK3_CHECK_REFUSED(AtomicFolder("/proc/run"), "/proc/run");
    KIMIK3_CHECK_REFUSED(AtomicFolder(around / std::string(300, 'x')), "File name too long");
    BOOST_TEST(get(around / "file") == "kept");
    BOOST_TEST(around.size() == 1);
}

BOOST_AUTO_TEST_CASE(a_folder_is_committed_once) {
    const TemporaryFolder around;
    for (std::string_view content : {"new", "in place of an old one"}) {
        AtomicFolder folder(around / "run");
        put((folder.path() / "f").string(), content);
        folder.commit();
        KIMIK3_CHECK_REFUSED(folder.commit(), "a folder is committed once");
        BOOST_TEST(get(around / "run/f") == content);
    }
}

BOOST_AUTO_TEST_SUITE_END()
