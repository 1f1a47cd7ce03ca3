#include <boost/test/unit_test.hpp>

#include "support/golden.hpp"
#include "support/kda_case.hpp"

namespace kimik3::test {
namespace {

/// Cases of the file: "kda.<gate>.<what>" with "<case>.in.q" among their tensors.
std::vector<std::string> cases(const Golden& golden) {
    std::vector<std::string> all;
    for (const std::string& name : golden.names("kda."))
        if (name.ends_with(".in.q")) all.push_back(name.substr(0, name.size() - 5));
    return all;
}

template <class T>
KdaCase<T> load(const Golden& golden, const std::string& name) {
    const std::vector<Index>&qk = golden.shape(name + ".in.q"), &v = golden.shape(name + ".in.v");
    const double bound = golden.values(name + ".lower_bound").at(0);
    KdaSizes sizes{.heads = qk[2], .key = qk[3], .value = v[3], .with_state = true};
    sizes.gate = bound < 0 ? DecayGateForm{DecayGate::bounded, bound} : DecayGateForm{DecayGate::softplus};
    KdaCase<T> c(std::vector<Index>(to_size(qk[0]), qk[1]), sizes);
    for (const auto& field : c.fields()) {
        if (!golden.has(name + ".in." + field.name))
            field.in->fill(T(0));
        else
            *field.in = Matrix<T>::of(field.in->rows(), field.in->cols(), golden.values(name + ".in." + field.name));
    }
    c.probe_o = Matrix<T>::of(c.rows, c.deep, golden.values(name + ".probe.o"));
    c.probe_final = Matrix<T>::of(c.slots, c.state_size(), golden.values(name + ".probe.final_state"));
    return c;
}

template <class T>
void check(KdaWay way, double tolerance) {
    const Golden golden("ops");
    const Context<Cpu> ctx(2);
    BOOST_TEST(!cases(golden).empty());
    for (const std::string& name : cases(golden)) {
        for (Index chunk : {16, 32, 64}) {
            KdaCase<T> c = load<T>(golden, name);
            if (way == KdaWay::fused && (c.sizes.gate.kind != DecayGate::bounded || chunk == 16)) continue;
            c.run(ctx, way, chunk);
            KIMIK3_CHECK_CLOSE_NAMED(name, c.o.values(), golden.values(name + ".out.o"), tolerance);
            KIMIK3_CHECK_CLOSE_NAMED(name, c.final.values(), golden.values(name + ".out.final_state"), tolerance);
            for (const auto& field : c.fields()) {
                if (!golden.has(name + ".grad." + field.name)) continue;
                KIMIK3_CHECK_CLOSE_NAMED(name + " " + field.name, field.grad->values(),
                                         golden.values(name + ".grad." + field.name), tolerance);
            }
        }
    }
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_kda)

BOOST_AUTO_TEST_CASE(token_by_token_agrees_in_outputs_states_and_every_gradient) {
    check<double>(KdaWay::recurrent, 1e-9);
    check<float>(KdaWay::recurrent, 1e-4);
}

BOOST_AUTO_TEST_CASE(chunks_of_16_32_and_64_agree_in_outputs_states_and_every_gradient) {
    check<double>(KdaWay::chunk, 1e-9);
    check<float>(KdaWay::chunk, 1e-4);
}

BOOST_AUTO_TEST_CASE(the_fused_form_agrees_in_outputs_states_and_every_gradient) {
    check<double>(KdaWay::fused, 1e-9);
    check<float>(KdaWay::fused, 1e-4);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
