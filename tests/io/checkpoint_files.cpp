#include "kimik3/io/checkpoint_files.hpp"

#include <boost/test/unit_test.hpp>

#include "io/files.hpp"

namespace fs = std::filesystem;
using namespace kimik3;
using namespace kimik3::test;

BOOST_AUTO_TEST_SUITE(checkpoint_files)

BOOST_AUTO_TEST_CASE(the_newest_checkpoint_of_a_run_is_found) {
    const TemporaryFolder folder;
    const fs::path run = folder / "run";
    KIMIK3_CHECK_REFUSED(find_checkpoint(run), "neither a checkpoint");
    for (const char* name : {"step-00000200", "step-99999999", "step-100000000", "step-00001000", "best", "step-",
                             "step-0000abcd", "step-5", "step-00000300.123-0.tmp"})
        fs::create_directories(run / name);
    put((run / "step-200000000").string(), "a file");
    std::vector<std::string> names;
    for (const fs::path& path : checkpoint_folders(run)) names.push_back(path.filename().string());
    BOOST_TEST(names == (std::vector<std::string>{"step-00000200", "step-00001000", "step-99999999", "step-100000000"}),
               boost::test_tools::per_element());
    BOOST_TEST(find_checkpoint(run) == run / "step-100000000");
    BOOST_TEST(checkpoint_folder(run, 1000) == run / "step-00001000");
    BOOST_TEST(checkpoint_folder(run, 100000000) == run / "step-100000000");
    put((run / "best/model.safetensors").string(), "");
    BOOST_TEST(find_checkpoint(run / "best") == run / "best");
    KIMIK3_CHECK_REFUSED(find_checkpoint(folder / "absent"), "neither a checkpoint");
    BOOST_TEST(checkpoint_folders(folder / "absent").empty());
}

BOOST_AUTO_TEST_SUITE_END()
