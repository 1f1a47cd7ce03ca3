// libFuzzer target: any bytes as the weights of a model with one parameter of each kind. Where they are taken, every
// number of the model is written.

#include <cstdlib>

#include "kimik3/io/stored_weights.hpp"
#include "support/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace kimik3;
    static const std::vector<ParameterInfo> parameters{{"model.embed_tokens.weight", {3, 2}, 0, 6, 0, {}},
                                                       {"e.w1.weight", {2, 32}, 6, 64, 8, {}},
                                                       {"A_log", {2}, 70, 2, 0, {}}};
    std::vector<double> first(72, 1.0), second(72, 2.0);
    try {
        const StoredWeights stored(test::memory_file(data, size), parameters, size % 2 == 0);
        stored.read(first.data());
        stored.read(second.data());
    } catch (const Error&) {
        return 0;
    }
    for (std::size_t n = 0; n < first.size(); ++n)
        if (first[n] == 1.0 && second[n] == 2.0) std::abort();
    return 0;
}
