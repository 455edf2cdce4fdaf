// A panel shows one metric of several runs over their steps. The SVG and the terminal output draw the same panels.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tessera/telemetry/plot/plotted_run.h"

namespace tessera::telemetry {

struct Point {
  std::int64_t step = 0;
  double value = 0;  // may be NaN or infinite
};

// The axis of the losses. `automatic`: linear, or logarithmic for losses of many magnitudes (value_range).
enum class LossAxis : std::uint8_t { automatic, logarithmic };

struct Panel {
  std::string title;                       // name and unit of the metric
  std::vector<std::vector<Point>> curves;  // by run
  std::vector<std::vector<Point>> marks;   // by run: the held-out losses
  bool is_log = false;                     // whether the axis of the values must be logarithmic
};

// The range of the steps. Steps are subtracted as integers, because neighbouring steps above 2^53 are equal as doubles.
struct StepRange {
  std::int64_t first = 0, last = 0;
  // Returns the position of a step on the axis: 0 at `first`, 1 at `last`. If the two are equal, returns 0.5.
  double position(std::int64_t step) const;
};

// The range of the values of a panel. If `is_log` is true, the axis is logarithmic and `low` is above 0.
struct ValueRange {
  double low = 0, high = 1;
  bool is_log = false;
  // Returns whether the axis has a position for the value: the value is finite, and above 0 on a logarithmic axis.
  bool shows(double value) const;
  // Returns the position of a shown value: 0 at `low`, 1 at `high`. The position is finite for all doubles.
  double position(double value) const;
};

// Returns a panel for each row of metric_rows() with a title.
std::vector<Panel> panels_of(const std::vector<PlottedRun>& runs, LossAxis axis = LossAxis::automatic);
// Returns the range of the steps of all runs; 0 to 0 without steps.
StepRange step_range(const std::vector<PlottedRun>& runs);
// Returns the range of the values that the panel can show, with a margin if all values are equal. The range is
// logarithmic if Panel::is_log is true, or if all values are above 0 and the largest value is more than 100 times the
// smallest. Without values, the range is [0, 1], or [1, 10] if Panel::is_log is true.
ValueRange value_range(const Panel& panel);

}  // namespace tessera::telemetry
