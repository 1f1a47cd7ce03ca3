// libFuzzer target: any text as the index beside two small shards. An index that is taken survives being written again,
// and every tensor that it names is there.

#include <cstdlib>

#include "io/files.hpp"
#include "kimik3/io/safetensors_writer.hpp"
#include "kimik3/io/tensor_files.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace kimik3;
    static const test::TemporaryFolder folder;
    static const bool written = [] {
        static const float numbers[] = {1, 2, 3};
        write_safetensors(folder / "a.safetensors", {tensor_in_memory("x", {3}, numbers)});
        write_safetensors(folder / "b.safetensors",
                          {tensor_in_memory("y", {1}, numbers), tensor_in_memory("z", {2}, numbers)});
        return true;
    }();
    if (!written) std::abort();
    const std::string text(reinterpret_cast<const char*>(data), size);
    test::put(folder / std::string(index_file), text);
    try {
        const CheckpointIndex index = parse_checkpoint_index(text, "index");
        const CheckpointIndex again = parse_checkpoint_index(format_checkpoint_index(index), "again");
        if (again.files != index.files || again.total_bytes != index.total_bytes) std::abort();
        const TensorFiles files(folder / "");
        for (const auto& entry : index.files) {
            std::vector<float> numbers(to_size(files.find(entry.first).count));
            files.read_part(entry.first, 0, numbers.data(), static_cast<Index>(numbers.size()));
        }
    } catch (const Error&) {
    }
    return 0;
}
