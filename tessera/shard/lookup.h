// How the rows of a table, which are read by index, reach the ranks that read them.
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera::shard {

enum class Lookup : std::uint8_t {
  automatic,  // the way that receives fewer bytes (sizes.h)
  gather,     // the whole table is gathered, like any weight
  rows,       // only the rows that are read travel, each from the rank that stores it (rows.h)
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
  // Maximum number of rows, the same on every rank; 0: an ordinary weight, not a table.
  std::int64_t per_microbatch = 0;
  Lookup lookup = Lookup::automatic;
  bool operator==(const RowReads&) const = default;
};

}  // namespace tessera::shard
