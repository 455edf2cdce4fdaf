// Do boxes cover a matrix exactly once?
#pragma once
#include <optional>
#include <span>
#include <string>

#include "tessera/layout/box.h"

namespace tessera::checkpoint {

// Nothing when every element of the matrix lies in exactly one box; else what is wrong, for a message. Boxes may come
// from a damaged file: any values are allowed. O(n log n) for n boxes.
std::optional<std::string> cover_fault(layout::Shape shape, std::span<const layout::Box> boxes);

}  // namespace tessera::checkpoint
