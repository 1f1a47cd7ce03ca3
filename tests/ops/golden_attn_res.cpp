#include "kimik3/ops/cpu/attn_res.hpp"

#include <boost/test/unit_test.hpp>
#include <set>

#include "support/golden.hpp"
#include "support/matrix.hpp"

namespace kimik3::test {
namespace {

template <class T>
void check_case(const Golden& golden, const std::string& name, double tolerance) {
    const Index rows = golden.shape(name + ".in.prefix")[0], width = golden.shape(name + ".in.prefix")[1];
    std::vector<std::string> names;
    while (golden.has(name + fmt::format(".in.endpoint{}", names.size())))
        names.push_back(fmt::format("endpoint{}", names.size()));
    names.push_back("prefix");
    const auto read = [&](const std::string& tensor, Index r) {
        return Matrix<T>::of(r, width, golden.values(name + tensor));
    };

    std::vector<Matrix<T>> v, dv;
    for (const std::string& candidate : names) {
        v.push_back(read(".in." + candidate, rows));
        dv.emplace_back(rows, width).fill(T(0));
    }
    Candidates<const T> candidates;
    Candidates<T> dcandidates;
    for (Matrix<T>& m : v) candidates.add(m.view());
    for (Matrix<T>& m : dv) dcandidates.add(m.view());
    Matrix<T> gamma = read(".in.norm", 1), pi = read(".in.proj", 1), dh = read(".probe.h", rows), h(rows, width);
    Matrix<T> p(rows, candidates.count), r(rows, candidates.count), dgamma(1, width), dpi(1, width);
    dgamma.fill(T(0));
    dpi.fill(T(0));

    const Context<Cpu> ctx(2);
    attn_res_forward(ctx, candidates, gamma.vector(), pi.vector(), 1e-5, h.view(), p.view(), r.view());
    attn_res_backward(ctx, dh, candidates, gamma.vector(), pi.vector(), p, r, h, dcandidates, dgamma.vector(),
                      dpi.vector());
    KIMIK3_CHECK_CLOSE_NAMED(name, h.values(), golden.values(name + ".out.h"), tolerance);
    KIMIK3_CHECK_CLOSE_NAMED(name, dgamma.values(), golden.values(name + ".grad.norm"), tolerance);
    KIMIK3_CHECK_CLOSE_NAMED(name, dpi.values(), golden.values(name + ".grad.proj"), tolerance);
    for (std::size_t j = 0; j < names.size(); ++j)
        KIMIK3_CHECK_CLOSE_NAMED(name, dv[j].values(), golden.values(name + ".grad." + names[j]), tolerance);
}

}  // namespace

BOOST_AUTO_TEST_SUITE(golden_attn_res)

BOOST_AUTO_TEST_CASE(every_mix_of_the_file_agrees) {
    const Golden golden("ops");
    std::set<std::string> cases;
    for (const std::string& name : golden.names("attn_res.")) cases.insert(name.substr(0, name.find('.', 9)));
    BOOST_TEST(!cases.empty());
    for (const std::string& name : cases) {
        check_case<double>(golden, name, 1e-9);
        check_case<float>(golden, name, 1e-4);
    }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace kimik3::test
