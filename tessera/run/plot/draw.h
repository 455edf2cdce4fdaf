// Draws panels as an SVG and as text for a terminal. The same runs give the same bytes.
#pragma once
#include <string>
#include <vector>

#include "tessera/run/plot/plotted_run.h"

namespace tessera::run {

// Returns an SVG with one panel below the other. The colours can be read on white and on black. In each column of
// pixels a curve shows its lowest and its highest value, so that a spike is visible among any number of steps. Values
// that are not finite interrupt the curve and have a red tick on the step axis.
std::string svg_of(const std::vector<PlottedRun>& runs);

// Returns the panels as lines of ASCII of at most `columns` characters (at least 40). Each run has a letter, and '#' is
// where runs overlap; a single run is drawn with '*'. Held-out losses are 'o'. '!' on the step axis: a value is not
// finite.
std::string terminal_plot(const std::vector<PlottedRun>& runs, int columns);

}  // namespace tessera::run
