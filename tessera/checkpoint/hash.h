// The checksum of checkpoints: XXH3, 128 bits. The checksum detects damage; it does not protect against an attacker.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace tessera::checkpoint {

// Computes the hash of a stream of bytes. The result does not depend on how the bytes are divided into update() calls.
// Used by one thread at a time.
class Hasher {
 public:
  Hasher();
  void update(const void* data, std::size_t bytes);
  // Returns 32 lower-case hexadecimal digits, the canonical (big-endian) form that `xxhsum -H2` prints. Afterwards,
  // update() may be called again.
  std::string hex() const;

 private:
  struct State;
  struct Free {
    void operator()(State* state) const;
  };
  std::unique_ptr<State, Free> state_;
};

std::string hash_of(const void* data, std::size_t bytes);

}  // namespace tessera::checkpoint
