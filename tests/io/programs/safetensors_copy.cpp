// safetensors_copy FROM TO: reads every tensor and the metadata of one file and writes them to another. Exit code 1
// with the reason when a file is refused.

#include <fmt/core.h>

#include "kimik3/io/safetensors.hpp"
#include "kimik3/io/safetensors_writer.hpp"

int main(int argument_count, char** arguments) {
    using namespace kimik3;
    if (argument_count != 3) return 2;
    try {
        const SafetensorsFile file(arguments[1]);
        std::vector<TensorToWrite> tensors;
        for (const auto& entry : file.tensors()) {
            const std::string& name = entry.first;
            const TensorInfo& tensor = entry.second;
            tensors.push_back({name, tensor.dtype, tensor.shape, [&](const ByteSink& sink) {
                detail::with_type(tensor.dtype, [&]<class T>(std::type_identity<T>) {
                    const auto elements = std::make_unique<T[]>(to_size(tensor.count));
                    file.read(name, elements.get(), tensor.count);
                    sink(elements.get(), tensor.size_bytes);
                });
            }});
        }
        write_safetensors(arguments[2], std::move(tensors), {file.metadata().begin(), file.metadata().end()});
    } catch (const Error& error) {
        fmt::print(stderr, "{}\n", error.what());
        return 1;
    }
}
