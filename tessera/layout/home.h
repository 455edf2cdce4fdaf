// Storage for layouts whose ranks overlap: each element in one place.
#pragma once
#include "tessera/layout/layout.h"

namespace tessera::layout {

// The layout in which each element is kept only by the lowest-ranked of its holders, in the order it had there, stacked
// densely. The result is replicated (never partial); the ranks hold together what they held before. Errors: as
// validate.
Layout unique_home(const Layout& layout);

}  // namespace tessera::layout
