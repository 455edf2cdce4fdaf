// A panel shows one metric of several runs over their steps. The SVG and the terminal output draw the same panels.
#pragma once
#include <string>
#include <vector>

#include "tessera/run/plot/plotted_run.h"

namespace tessera::run {

struct Point {
  double step = 0, value = 0;  // the value may be NaN or infinite
};
struct Panel {
  std::string title;                       // name and unit of the metric
  std::vector<std::vector<Point>> curves;  // by run
  std::vector<std::vector<Point>> marks;   // by run: the held-out losses
};

// The range of an axis. If `is_log` is true, the axis is logarithmic and `low` is above 0.
struct AxisRange {
  double low = 0, high = 1;
  bool is_log = false;
  // Returns the position of a value on the axis: 0 at `low`, 1 at `high`.
  double position(double value) const;
};

// Returns the panels loss, grad_norm, lr and tokens_per_second.
std::vector<Panel> panels_of(const std::vector<PlottedRun>& runs);
// Returns the range of the steps of all runs. A single step gets a margin of half a step on each side, so the range is
// not empty.
AxisRange step_range(const std::vector<PlottedRun>& runs);
// Returns the range of the panel's finite values, with a margin if all values are equal. The range is logarithmic if
// all values are above 0 and the largest value is more than 100 times the smallest. Without finite values the range is
// [0, 1].
AxisRange value_range(const Panel& panel);

}  // namespace tessera::run
