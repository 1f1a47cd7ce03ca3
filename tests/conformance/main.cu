#define BOOST_TEST_NO_MAIN
#include <boost/test/included/unit_test.hpp>
#include <cuda_runtime.h>
#include <cstdio>

// Without a GPU only what holds without one is run; the suite was skipped, and says so by its exit status.
int main(int argc, char* argv[]) {
    int devices = 0;
    const bool gpu = cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0;
    char without_gpu[] = "--run_test=without_gpu";
    char* few[] = {argv[0], without_gpu, nullptr};
    const int status = boost::unit_test::unit_test_main([] { return true; }, gpu ? argc : 2, gpu ? argv : few);
    if (gpu || status != 0) return status;
    std::puts("skipped: no GPU");
    return 77;
}
