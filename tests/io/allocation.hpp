#pragma once
// The largest single allocation since a point in time; the program's operator new reports to it (allocation.cpp).

#include <atomic>
#include <cstddef>

namespace kimik3::test {

inline std::atomic<std::size_t> largest_allocation_bytes{0};

}  // namespace kimik3::test
