// Tables that are read by row index: how they reach the ranks that read them.
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera::shard {

enum class Lookup : std::uint8_t {
  automatic,  // whichever receives fewer bytes (sizes.h)
  gather,     // whole, as any weight
  rows,       // the rows that are read, each from the rank that stores it (rows.h)
};
constexpr std::string_view name_of(Lookup lookup) {
  switch (lookup) {
    case Lookup::automatic:
      return "auto";
    case Lookup::gather:
      return "gather";
    case Lookup::rows:
      return "rows";
  }
  return "?";
}

struct RowReads {
  std::int64_t per_microbatch = 0;  // rows at most, the same on every rank; 0: no such table, an ordinary weight
  Lookup lookup = Lookup::automatic;
  bool operator==(const RowReads&) const = default;
};

}  // namespace tessera::shard
