// libFuzzer: any bytes as a shard file. What the reader accepts, the writer gives back with the same ids.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "kimik3/data/shard.hpp"

namespace {

std::vector<std::int32_t> ids_of(const kimik3::Shard& shard) {
    std::vector<std::int32_t> ids(kimik3::to_size(shard.tokens()));
    shard.read(0, ids);
    return ids;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const kimik3::detail::Descriptor memory(::memfd_create("shard", MFD_CLOEXEC));
    static const std::filesystem::path path = fmt::format("/proc/self/fd/{}", memory.number());
    static const std::filesystem::path copy =
        std::filesystem::temp_directory_path() / fmt::format("kimik3_fuzz_shard_{}", ::getpid());
    if (::ftruncate(memory.number(), 0) != 0) std::abort();
    if (::pwrite(memory.number(), data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    for (const kimik3::Index vocabulary : {kimik3::Index{300}, kimik3::Index{65536}, kimik3::Index{1} << 31}) {
        std::vector<std::int32_t> ids;
        try {
            ids = ids_of({path, vocabulary});
        } catch (const kimik3::Error&) {
            continue;
        }
        const auto wrong = [vocabulary](std::int32_t id) { return id < 0 || id >= vocabulary; };
        if (std::any_of(ids.begin(), ids.end(), wrong)) std::abort();
        kimik3::ShardWriter writer(copy, vocabulary);
        writer.append(ids);
        writer.finish();
        if (ids_of({copy, vocabulary}) != ids) std::abort();
        std::filesystem::remove(copy);
    }
    return 0;
}
