// Replaces operator new so that tests can see how much a reader asks for at once.

#include "io/allocation.hpp"

#include <cstdlib>
#include <new>

void* operator new(std::size_t bytes) {
    auto& largest = kimik3::test::largest_allocation_bytes;
    std::size_t seen = largest.load();
    while (seen < bytes && !largest.compare_exchange_weak(seen, bytes)) {
    }
    if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
    throw std::bad_alloc();
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
