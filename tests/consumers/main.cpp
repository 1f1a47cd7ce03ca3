#include <kimik3/kimik3.hpp>

static_assert(__cplusplus >= 202002L, "whoever links kimik3::kimik3 is compiled as C++20");
#ifdef WITH_OWN_MODEL
#include <kimik3_presets/own_model.hpp>
static_assert(kimik3::presets::own_model.hidden_size == 40);
#endif
#ifndef EIGEN_DONT_PARALLELIZE
#error "the target's definitions do not arrive"
#endif

int main() {
    kimik3::check_invariants(kimik3::presets::tiny);
    return kimik3::valid<kimik3::presets::tiny> ? 0 : 1;
}
