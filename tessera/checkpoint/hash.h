// The checksum of checkpoints: XXH3, 128 bits. It guards against damage, not against an attacker.
#pragma once
#include <cstddef>
#include <memory>
#include <string>

namespace tessera::checkpoint {

// Streaming: the result depends on the bytes alone, not on how they are cut into update() calls. One thread at a time.
class Hasher {
 public:
  Hasher();
  void update(const void* data, std::size_t bytes);
  // 32 lower-case hexadecimal digits, the canonical (big-endian) form that `xxhsum -H2` prints. More updates may
  // follow.
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
