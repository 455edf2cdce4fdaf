// Layouts for storage that hold each element once, made from layouts whose ranks overlap.
#pragma once
#include "tessera/layout/layout.h"

namespace tessera::layout {

// Returns the layout in which an element is only on the lowest of the ranks that hold it. Each rank keeps its elements
// in their order, stacked densely. All ranks together hold the same elements as before. The result is replicated, not
// partial. Throws the errors of validate.
Layout unique_home(const Layout& layout);

}  // namespace tessera::layout
