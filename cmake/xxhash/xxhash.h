// Declares the functions of xxHash's shared library (0.8 and later) that Tessera calls, for machines that have the
// library but not its header (Dependencies.cmake).
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

std::uint64_t XXH64(const void* data, std::size_t bytes, std::uint64_t seed);

struct XXH3_state_s;
using XXH3_state_t = XXH3_state_s;
struct XXH128_hash_t {
  std::uint64_t low64, high64;
};
XXH3_state_t* XXH3_createState();
int XXH3_freeState(XXH3_state_t* state);
int XXH3_128bits_reset(XXH3_state_t* state);
int XXH3_128bits_update(XXH3_state_t* state, const void* data, std::size_t bytes);
XXH128_hash_t XXH3_128bits_digest(const XXH3_state_t* state);

}  // extern "C"
