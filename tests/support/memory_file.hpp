#pragma once
// A file in memory whose path can be opened, for fuzz targets.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace kimik3::test {

/// The path of the file, which holds these bytes until the next call.
inline std::string memory_file(const std::uint8_t* data, std::size_t size) {
    static const int descriptor = ::memfd_create("fuzz", 0);
    if (descriptor < 0 || ::ftruncate(descriptor, 0) != 0) std::abort();
    if (::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    return "/proc/self/fd/" + std::to_string(descriptor);
}

}  // namespace kimik3::test
