// What goes wrong on a GPU, or without one, is an Error that names the call and the place, and loses nothing.
#include <boost/test/unit_test.hpp>

#include "conformance/device.hpp"
#include "io/files.hpp"
#include "kimik3/cuda.cuh"

using namespace kimik3;
using namespace kimik3::test;

namespace {

boost::test_tools::assertion_result no_gpu(boost::unit_test::test_unit_id) {
    int devices = 0;
    return cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
}

/// Sums one row of ones on the GPU, which nothing that went wrong before may disturb.
void check_that_it_works() {
    Both x = Both::zeros(1, 5), y = Both::zeros(1, 5);
    for (Index c = 0; c < 5; ++c) x.host(0, c) = 1;
    x.send();
    add_to(cuda(), x.g(), y.g());
    BOOST_CHECK(y.found() == std::vector<float>(5, 1.0f));
}

__global__ void wait_kernel(long long cycles) {
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(without_gpu)

BOOST_AUTO_TEST_CASE(b72_without_a_gpu_its_context_says_so_and_the_cpu_works, *boost::unit_test::precondition(no_gpu)) {
    const std::string text = refusal([] { Context<Cuda>{}; });
    BOOST_CHECK_MESSAGE(text.starts_with("no GPU: the CUDA backend needs one, and the driver says: "), text);
    Matrix<float> x(1, 1), y(1, 1);
    x(0, 0) = 1, y(0, 0) = 2;
    add_to(cpu(), MatrixView<const float>(x.view()), y.view());
    BOOST_CHECK_EQUAL(y(0, 0), 3.0f);
}

BOOST_AUTO_TEST_CASE(b72_a_failed_call_names_itself_its_file_and_its_line) {
    const unsigned line = __LINE__ + 1;
    const std::string text = refusal([] { KIMIK3_CUDA(cudaSetDevice(-1)); });
    BOOST_CHECK_MESSAGE(contains(text, fmt::format("errors.cu:{}: cudaSetDevice(-1): ", line)), text);
}

BOOST_AUTO_TEST_CASE(b72_an_error_of_earlier_work_says_so) {
    const std::string later = refusal([] { detail::cuda_check(cudaErrorIllegalAddress, "copy", "a.cuh", 7); });
    BOOST_CHECK_MESSAGE(later.starts_with("a.cuh:7: copy: ") && contains(later, "in work started before"), later);
    const std::string now = refusal([] { detail::cuda_check(cudaErrorInvalidValue, "copy", "a.cuh", 7); });
    BOOST_CHECK_MESSAGE(!contains(now, "before"), now);
}

BOOST_AUTO_TEST_SUITE_END()

/// Whether compute-sanitizer looks on (tests/gpu.sh --sanitize): then streams wait for each other.
const bool watched = std::getenv("KIMIK3_WATCHED") != nullptr;

BOOST_AUTO_TEST_SUITE(conformance_errors)

BOOST_AUTO_TEST_CASE(b72_a_launch_that_cannot_be_names_its_place_and_the_next_one_works) {
    const std::string text = refusal([] {
        wait_kernel<<<1, 4096, 0, cuda().stream()>>>(0);
        check_launch();
    });
    BOOST_CHECK_MESSAGE(contains(text, "errors.cu:") && contains(text, "launch in "), text);
    check_that_it_works();
}

BOOST_AUTO_TEST_CASE(b72_heads_too_wide_for_shared_memory_are_refused_and_the_next_call_works) {
    const MlaHeads heads{1, 4, 4, 100000};
    const Sequences seq = sequences_of({1});
    Both q = Both::random(1, 8, 1), kv = Both::random(1, 100004, 2), k = Both::random(1, 4, 3), o(1, 100000), lse(1, 1);
    const std::string text =
        refusal([&] { causal_attention_forward(cuda(), seq, heads, q.g(), kv.g(), k.g(), o.g(), lse.g()); });
    BOOST_CHECK_MESSAGE(contains(text, "causal_attention.cuh:") && contains(text, "cudaFuncSetAttribute"), text);
    check_that_it_works();
}

BOOST_AUTO_TEST_CASE(b72_out_of_memory_is_an_error_that_leaks_nothing) {
    const Index before = cuda().free_bytes();
    const std::string text = refusal([&] { Buffer<float, Cuda>{before}; });
    BOOST_CHECK_MESSAGE(contains(text, fmt::format("out of GPU memory: {} bytes were asked for", 4 * before)), text);
    BOOST_CHECK_GE(cuda().free_bytes(), before / 2);  // others may have taken some meanwhile
    BOOST_CHECK_EQUAL((Buffer<float, Cuda>{1000}).size(), 1000);
    check_that_it_works();
}

BOOST_AUTO_TEST_CASE(b72_results_are_there_though_another_stream_is_busy) {
    check_that_it_works();  // and its kernel is loaded, which may wait for all streams
    cudaStream_t other = nullptr;
    KIMIK3_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    Both x = Both::zeros(1, 5), y = Both::zeros(1, 5);
    cuda().synchronise();
    wait_kernel<<<1, 1, 0, other>>>(2'000'000'000);  // about a second
    check_launch();
    add_to(cuda(), x.g(), y.g());
    std::vector<float> memory;
    on_host(cuda(), MatrixView<const float>(y.g()), memory);
    BOOST_CHECK(memory == std::vector<float>(5, 0.0f));
    if (!watched) BOOST_CHECK_EQUAL(cudaStreamQuery(other), cudaErrorNotReady);
    cudaGetLastError();
    KIMIK3_CUDA(cudaStreamSynchronize(other));
    KIMIK3_CUDA(cudaStreamDestroy(other));
}

BOOST_AUTO_TEST_SUITE_END()
