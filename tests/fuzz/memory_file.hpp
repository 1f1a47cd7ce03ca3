#pragma once
// A file in memory for fuzz targets of readers that take a path.

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

/// A path that can be opened and holds these bytes until the next call.
inline std::string memory_file(const std::uint8_t* data, std::size_t size) {
    static const int descriptor = ::memfd_create("fuzz", 0);
    if (descriptor < 0 || ::ftruncate(descriptor, 0) != 0) std::abort();
    if (::pwrite(descriptor, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
    return "/proc/self/fd/" + std::to_string(descriptor);
}
