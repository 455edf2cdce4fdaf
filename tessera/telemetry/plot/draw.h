// Draws panels as an SVG and as text for a terminal. Equal runs give equal bytes.
#pragma once
#include <string>
#include <vector>

#include "tessera/telemetry/plot/panel.h"
#include "tessera/telemetry/plot/plotted_run.h"

namespace tessera::telemetry {

// Returns an SVG with one panel below the other. The colours are readable on a white and on a black background. In each
// column of pixels, a curve shows its lowest and its highest value, so a spike is visible among any number of steps. At
// a value that the axis cannot show (ValueRange::shows), the curve has a gap and the step axis has a red tick.
std::string svg_of(const std::vector<PlottedRun>& runs, LossAxis axis = LossAxis::automatic);

// Returns the panels as lines of ASCII with at most `columns` characters (40 or more). Each run is drawn with a letter,
// or with '*' if there is one run. '#' marks points where runs overlap, and 'o' marks held-out losses. '!' on the step
// axis marks a value that the axis of values cannot show.
std::string terminal_plot(const std::vector<PlottedRun>& runs, int columns, LossAxis axis = LossAxis::automatic);

}  // namespace tessera::telemetry
