#include "tests/fuzz/allocations.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>

namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();
std::atomic<std::int64_t> bytes_in_use = 0, most_in_use = 0, most_allowed = kNoLimit;

void raise_most(std::int64_t bytes) {
  std::int64_t most = most_in_use;
  while (bytes > most && !most_in_use.compare_exchange_weak(most, bytes)) {
  }
}

// Returns null if the allocation is refused or fails.
void* allocate(std::size_t size, std::size_t alignment) {
  constexpr std::size_t kLargest = std::numeric_limits<std::int64_t>::max() / 2;
  const auto requested = static_cast<std::int64_t>(size > kLargest ? kLargest : size);
  if (most_allowed != kNoLimit) {
    raise_most(bytes_in_use + requested);
    if (bytes_in_use + requested > most_allowed) return nullptr;
  }
  void* memory = nullptr;
  if (alignment <= alignof(std::max_align_t))
    memory = std::malloc(size == 0 ? 1 : size);
  else if (posix_memalign(&memory, alignment, size) != 0)
    memory = nullptr;
  if (memory != nullptr) bytes_in_use += static_cast<std::int64_t>(malloc_usable_size(memory));
  return memory;
}

void* allocate_or_throw(std::size_t size, std::size_t alignment = 1) {
  void* memory = allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) {
  if (memory == nullptr) return;
  bytes_in_use -= static_cast<std::int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

std::size_t number(std::align_val_t alignment) {
  return static_cast<std::size_t>(alignment);
}

}  // namespace

void* operator new(std::size_t size) {
  return allocate_or_throw(size);
}
void* operator new[](std::size_t size) {
  return allocate_or_throw(size);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, number(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, number(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 1);
}
void* operator new[](std::size_t size, const std::nothrow_t&) noexcept {
  return allocate(size, 1);
}
void* operator new(std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, number(alignment));
}
void* operator new[](std::size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return allocate(size, number(alignment));
}
void operator delete(void* memory) noexcept {
  release(memory);
}
void operator delete[](void* memory) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  release(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  release(memory);
}

namespace tessera::fuzz {

AllocationLimit::AllocationLimit(std::int64_t limit) : before_(bytes_in_use) {
  most_in_use = before_;
  most_allowed = before_ + limit;
}

AllocationLimit::~AllocationLimit() {
  most_allowed = kNoLimit;
}

std::int64_t AllocationLimit::most() const {
  return most_in_use - before_;
}

}  // namespace tessera::fuzz
