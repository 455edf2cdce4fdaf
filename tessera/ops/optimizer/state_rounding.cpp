#include "tessera/ops/optimizer/state_rounding.h"

#include "tessera/base/text/name_hash.h"

namespace tessera::ops {

base::PhiloxKey state_rounding_key(std::uint64_t seed, std::string_view parameter) {
  constexpr std::uint64_t kMoments = 0x31'73'74'6E'65'6D'6F'6D;  // "moments1", the first letter in the low byte
  const std::uint64_t key = seed ^ kMoments ^ base::name_hash(parameter);
  return {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
}

}  // namespace tessera::ops
