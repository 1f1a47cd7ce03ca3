// libFuzzer target: any bytes as a safetensors file. It is opened and, where that is accepted, read whole.

#include <cstdlib>
#include <vector>

#include "kimik3/io/safetensors.hpp"
#include "support/memory_file.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    try {
        const kimik3::SafetensorsFile file(kimik3::test::memory_file(data, size));
        for (const auto& [name, tensor] : file.tensors()) {
            if (tensor.file_offset + tensor.size_bytes > static_cast<kimik3::Index>(size)) std::abort();
            try {
                std::vector<double> values(kimik3::to_size(tensor.count));
                file.read(name, values.data(), tensor.count);
            } catch (const kimik3::Error&) {
                std::vector<std::int64_t> values(kimik3::to_size(tensor.count));
                file.read(name, values.data(), tensor.count);
            }
        }
    } catch (const kimik3::Error&) {
    }
    return 0;
}
