// Checks whether boxes cover a matrix exactly once.
#pragma once
#include <optional>
#include <span>
#include <string>

#include "tessera/layout/box.h"

namespace tessera::checkpoint {

// Returns nullopt if every element of the matrix is in exactly one box, otherwise a description of the fault for an
// error message. The boxes may have any values, because they may come from a damaged file. O(n log n) for n boxes.
std::optional<std::string> cover_fault(layout::Shape shape, std::span<const layout::Box> boxes);

}  // namespace tessera::checkpoint
