#include <string>

#include <kimik3/backend/cuda.cuh>

static_assert(__cplusplus >= 202002L, "whoever links kimik3::cuda is compiled as C++20");

// With a GPU it can be used; without one its context says so.
int main() {
    try {
        return kimik3::Context<kimik3::Cuda>{}.name().empty() ? 1 : 0;
    } catch (const kimik3::Error& error) {
        return std::string(error.what()).starts_with("no GPU") ? 0 : 1;
    }
}
