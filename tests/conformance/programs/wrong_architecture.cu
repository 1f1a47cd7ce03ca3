// Compiled for another GPU than the one here: the context refuses it and names both.
#include <cstdio>
#include <string>

#include "kimik3/backend/cuda.cuh"

int main() {
    std::string text = "the kernels run";
    try {
        kimik3::Context<kimik3::Cuda>{};
    } catch (const kimik3::Error& error) {
        text = error.what();
    }
    std::puts(text.c_str());
    if (text.starts_with("no GPU")) return 77;
    const auto names = [&](const std::string& part) { return text.find(part) != std::string::npos; };
    return text.starts_with("wrong GPU architecture: ") && names("has compute capability ") &&
                   names("were compiled for " + kimik3::detail::compiled_capabilities() + ":")
               ? 0
               : 1;
}
