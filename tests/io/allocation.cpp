// Replaces operator new so that tests can see how much a reader asks for at once. The nothrow form (std::stable_sort takes
// its buffer so) is replaced with it: what delete below frees must come from malloc.

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

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept try {
    return operator new(bytes);
} catch (const std::bad_alloc&) {
    return nullptr;
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
