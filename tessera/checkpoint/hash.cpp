#include "tessera/checkpoint/hash.h"

#include <fmt/format.h>

#include <xxhash.h>

#include <new>

namespace tessera::checkpoint {

struct Hasher::State {
  XXH3_state_t* const xxh = XXH3_createState();
  State() {
    if (xxh == nullptr) throw std::bad_alloc();
  }
  ~State() { XXH3_freeState(xxh); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
};

void Hasher::Free::operator()(State* state) const {
  delete state;
}

Hasher::Hasher() : state_(new State) {
  XXH3_128bits_reset(state_->xxh);
}

void Hasher::update(const void* data, std::size_t bytes) {
  if (bytes > 0) XXH3_128bits_update(state_->xxh, data, bytes);
}

std::string Hasher::hex() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_->xxh);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string hash_of(const void* data, std::size_t bytes) {
  Hasher hasher;
  hasher.update(data, bytes);
  return hasher.hex();
}

}  // namespace tessera::checkpoint
