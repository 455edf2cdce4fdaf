// Makes a layout that holds each element once from a layout whose ranks overlap.
#pragma once
#include "tessera/layout/layout.h"

namespace tessera::layout {

// Returns a layout in which each element is on one rank: the lowest rank that holds the element in `layout`. The
// elements of a rank keep their order and are stacked densely. All ranks together hold the elements that they hold in
// `layout`. The result is replicated, not partial. Throws the errors of validate.
Layout unique_home(const Layout& layout);

}  // namespace tessera::layout
