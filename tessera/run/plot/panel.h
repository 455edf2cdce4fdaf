// A panel: one metric of several runs over their steps, and its axes. The SVG and the terminal draw the same panels.
#pragma once
#include <string>
#include <vector>

#include "tessera/run/plot/plotted_run.h"

namespace tessera::run {

struct Point {
  double step = 0, value = 0;  // the value may be not finite
};
struct Panel {
  std::string title;                       // the name of the metric, and its unit
  std::vector<std::vector<Point>> curves;  // by run
  std::vector<std::vector<Point>> marks;   // by run: held-out losses
};

// The range of an axis. If `is_log`, low is above 0 and positions follow the logarithm.
struct AxisRange {
  double low = 0, high = 1;
  bool is_log = false;
  // Returns 0 at `low` and 1 at `high`.
  double position(double value) const;
};

// Returns the panels loss, grad_norm, lr and tokens_per_second.
std::vector<Panel> panels_of(const std::vector<PlottedRun>& runs);
// Returns the range of the steps of all runs. The range is never empty: a single step has half a step on each side.
AxisRange step_range(const std::vector<PlottedRun>& runs);
// Returns the range of the panel's finite values, with a margin if all are equal. The range is logarithmic if all
// values are above 0 and the largest is more than 100 times the smallest. Without finite values the range is [0, 1].
AxisRange value_range(const Panel& panel);

}  // namespace tessera::run
