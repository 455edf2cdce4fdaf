// A hash of names that is equal in every program: FNV-1a with 64 bits (Fowler, Noll, Vo).
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera::base {

constexpr std::uint64_t name_hash(std::string_view name) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

}  // namespace tessera::base
