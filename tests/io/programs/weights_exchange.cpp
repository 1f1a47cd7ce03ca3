// weights_exchange write FOLDER: the golden model as FOLDER/f32, and in shards as FOLDER/bf16 and, under names with the
// prefix, FOLDER/f16. weights_exchange read A B: whether two folders hold the same weights.
#include <algorithm>

#include "support/stored_model.hpp"

namespace {

using Model = kimik3::test::Stored<kimik3::presets::golden, float>;

void write(const std::filesystem::path& folder) {
    const Model model(1);
    kimik3::write_weights(folder / "f32", model);
    kimik3::write_weights(folder / "bf16", model, {.dtype = kimik3::DType::bf16, .max_shard_bytes = 70000});
    kimik3::write_weights(folder / "f16", model,
                          {.dtype = kimik3::DType::f16, .prefix = "language_model.", .max_shard_bytes = 50000});
}

}  // namespace

int main(int argc, char** argv) {
    if (argc == 3 && std::string_view(argv[1]) == "write") return write(argv[2]), 0;
    if (argc != 4) return 2;
    Model a(2), b(3);
    kimik3::load_weights(argv[2], a);
    kimik3::load_weights(argv[3], b);
    return std::ranges::equal(a.weights(), b.weights()) ? 0 : 1;
}
