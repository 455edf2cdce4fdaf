// Checks lengths that peers send before memory of these lengths is allocated.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::comm {

// Returns a length that `rank` has sent. Throws Error unless it is in [0, most]. `what` names the counted objects.
inline std::size_t received_length(std::int64_t length, std::int64_t most, std::string_view what, int rank) {
  if (length < 0 || length > most) throw Error("rank {} announced {} {}: expected 0 to {}", rank, length, what, most);
  return static_cast<std::size_t>(length);
}

}  // namespace tessera::comm
