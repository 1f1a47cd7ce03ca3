#include <boost/test/unit_test.hpp>

#include <sys/mman.h>

#include "kimik3/config/schedule.hpp"
#include "kimik3/model/model_params.hpp"
#include "kimik3/model/parameter_layout.hpp"
#include "kimik3/model/summary.hpp"
#include "kimik3/tensor/arena.hpp"
#include "kimik3/tensor/sequences.hpp"

using namespace kimik3;

namespace {

constexpr Index two_31 = Index{1} << 31;

/// Address space without memory.
struct Reserved {
    explicit Reserved(std::size_t size)
        : bytes(size), memory(::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
        BOOST_REQUIRE(memory != MAP_FAILED);
    }
    ~Reserved() { ::munmap(memory, bytes); }
    std::size_t bytes;
    void* memory;
};

/// A model of two layers with the widths of the released K3 and more, beyond 2^31 elements in one layer.
constexpr ModelConfig huge{
    .vocab_size = 400000, .hidden_size = 7168, .num_layers = 2, .layer_types = "KM",
    .kda_heads = 96, .kda_head_dim = 128, .kda_gate_rank = 128,
    .mla_heads = 64, .q_lora_rank = 1536, .kv_lora_rank = 512,
    .qk_nope_head_dim = 128, .qk_rope_head_dim = 64, .v_head_dim = 128,
    .dense_intermediate_size = 18432, .num_experts = 896, .num_experts_per_token = 16,
    .moe_intermediate_size = 3072, .moe_latent_size = 3584,
};

}  // namespace

BOOST_AUTO_TEST_SUITE(large_sizes)

BOOST_AUTO_TEST_CASE(b70_elements_of_a_matrix_beyond_2_31_have_their_own_addresses) {
    constexpr Index rows = 43692, cols = 49152;
    static_assert(rows * cols > two_31);
    const Reserved reserved(to_size(rows * cols) * sizeof(std::uint16_t));
    const MatrixView<std::uint16_t> m(static_cast<std::uint16_t*>(reserved.memory), rows, cols);
    BOOST_TEST(m.size() == 2'147'549'184);
    BOOST_TEST(m.row(rows - 1) - m.data == (rows - 1) * cols);
    BOOST_TEST(&m(rows - 1, cols - 1) - m.data == rows * cols - 1);
    BOOST_TEST(m.middle_rows(rows - 2, 2).row(1) - m.data == (rows - 1) * cols);
    BOOST_TEST(m.middle_rows(rows - 1, 1).middle_cols(cols - 1, 1).data - m.data == rows * cols - 1);
}

BOOST_AUTO_TEST_CASE(b70_an_arena_and_sequences_count_beyond_2_31) {
    Arena measure;
    const MatrixView<float> one = measure.matrix<float>(43692, 49152);
    BOOST_TEST(one.size() == 43692LL * 49152);
    measure.vector<double>(two_31);
    BOOST_TEST(measure.used_bytes() == 4 * 43692LL * 49152 + 8 * two_31);
    const Sequences sequences = Sequences::uniform(3, two_31);
    BOOST_TEST(sequences.tokens() == 3 * two_31);
    BOOST_TEST(sequences.begin(2) == 2 * two_31);
    BOOST_TEST(sequences.longest() == two_31);
}

BOOST_AUTO_TEST_CASE(b70_parameters_beyond_2_31_are_laid_out_one_after_another) {
    static_assert(valid<huge>);
    ParameterTable table;
    ModelParams<schedule_of<huge>, Cpu, float, float>{}.fields(huge, FieldBinder<float, float>(table));
    const std::vector<ParameterInfo>& entries = table.entries();
    Index end = 0, experts = 0;
    for (const ParameterInfo& tensor : entries) {
        BOOST_TEST_REQUIRE(tensor.offset >= end);
        Index count = 1;
        for (Index extent : tensor.shape) count *= extent;
        BOOST_TEST_REQUIRE(tensor.count == count);
        end = tensor.offset + tensor.count;
        if (tensor.experts > 0) experts += tensor.count;
    }
    BOOST_TEST(experts == 896LL * 3 * 3072 * 3584);
    BOOST_TEST(experts > 4 * two_31);
    BOOST_TEST(table.size() >= end);
    BOOST_TEST(entries.front().count == 400000LL * 7168);
    BOOST_TEST(count_parameters(huge, entries).active <
               count_parameters(huge, entries).total - 800LL * 3 * 3072 * 3584);
}

BOOST_AUTO_TEST_CASE(b70_sizes_in_public_types_have_64_bits) {
    static_assert(sizeof(Index) == 8 && std::is_signed_v<Index>);
    static_assert(std::is_same_v<decltype(MatrixView<float>::rows), Index> &&
                  std::is_same_v<decltype(MatrixView<float>::stride), Index>);
    static_assert(std::is_same_v<decltype(VectorView<float>::size), Index>);
    static_assert(std::is_same_v<decltype(ParameterInfo::offset), Index> &&
                  std::is_same_v<decltype(ParameterInfo::count), Index>);
    static_assert(std::is_same_v<decltype(std::declval<Buffer<float>>().size()), Index>);
    BOOST_CHECK_THROW(Buffer<float>(-1), Error);
    BOOST_CHECK_THROW(Buffer<double>(Index{1} << 61), Error);  // 2^64 bytes
}

BOOST_AUTO_TEST_SUITE_END()
