#define BOOST_TEST_NO_MAIN
#include <boost/test/included/unit_test.hpp>
#include <cuda_runtime.h>
#include <cstdio>

// Without a GPU the suite was skipped, and says so by its exit status.
int main(int argc, char* argv[]) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        std::puts("skipped: no GPU");
        return 77;
    }
    return boost::unit_test::unit_test_main([] { return true; }, argc, argv);
}
