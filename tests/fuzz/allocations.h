// Counts the memory that C++ code allocates. allocations.cpp replaces operator new and operator delete of the binary.
#pragma once
#include <cstdint>

namespace tessera::fuzz {

// While the object exists, an allocation after which more than `limit` bytes of new memory are in use throws
// std::bad_alloc. One object may exist at a time. Counts the allocations of all threads.
class AllocationLimit {
 public:
  explicit AllocationLimit(std::int64_t limit);
  ~AllocationLimit();
  AllocationLimit(const AllocationLimit&) = delete;
  AllocationLimit& operator=(const AllocationLimit&) = delete;

  // Returns the largest number of bytes that were in use, or that a refused allocation requested.
  std::int64_t most() const;

 private:
  const std::int64_t before_;  // bytes in use when the object was made
};

}  // namespace tessera::fuzz
