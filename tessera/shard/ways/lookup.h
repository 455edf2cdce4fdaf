// How ranks get the rows of a table that they read by index.
#pragma once
#include <cstdint>
#include <string_view>

namespace tessera::shard {

enum class Lookup : std::uint8_t {
  automatic,  // chooses `gather` or `rows`, with fewer received bytes (sizes.h)
  gather,     // the whole table is gathered, like any weight
  rows,       // only the rows that are read are sent, each by the rank that stores it (rows.h)
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
  // Maximum number of rows that a rank reads in a microbatch, equal on every rank. 0: the parameter is not a table.
  std::int64_t per_microbatch = 0;
  Lookup lookup = Lookup::automatic;
  bool operator==(const RowReads&) const = default;
};

}  // namespace tessera::shard
