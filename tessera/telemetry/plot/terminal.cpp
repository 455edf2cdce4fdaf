#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/text/printable.h"
#include "tessera/telemetry/plot/draw.h"
#include "tessera/telemetry/plot/panel.h"
#include "tessera/telemetry/plot/ticks.h"

namespace tessera::telemetry {
namespace {

constexpr int kLabel = 12, kRows = 10, kFewestColumns = 40, kTicksOfLine = 8;  // sizes in characters

char letter_of(std::size_t run, std::size_t runs) {
  return runs == 1 ? '*' : static_cast<char>('a' + run % 26);
}

int cell(double position, int cells) {
  return std::clamp(static_cast<int>(std::lround(position * (cells - 1))), 0, cells - 1);
}

void put(char& place, char letter) {
  place = place == ' ' || place == letter ? letter : '#';
}

int plot_width(int columns) {
  return columns - kLabel - 1;
}

// Returns the ticks of the step axis: fewer for long labels.
std::vector<std::int64_t> ticks_of(const StepRange& steps, int width) {
  const auto label = static_cast<int>(std::to_string(steps.last).size());
  return step_ticks(steps, std::clamp(width / (label + 4), 2, kTicksOfLine));
}

// Returns the line below the panels: the first and the last step, and each tick whose label has space.
std::string step_labels(const StepRange& steps, int columns) {
  const int width = plot_width(columns);
  std::string line(static_cast<std::size_t>(width), ' ');
  const auto put_at = [&](int begin, const std::string& label) {
    line.replace(static_cast<std::size_t>(begin), label.size(), label);
  };
  const std::string first = fmt::format("step {}", steps.first), last = fmt::format("step {}", steps.last);
  const auto from = [&](int middle, const std::string& label) { return middle - static_cast<int>(label.size()) / 2; };
  if (steps.first == steps.last) {
    put_at(from(width / 2, first), first);
  } else {
    put_at(0, first);
    const int end = width - static_cast<int>(last.size());
    if (end > static_cast<int>(first.size())) put_at(end, last);
    for (const std::int64_t step : ticks_of(steps, width)) {
      const std::string label = std::to_string(step);
      const int begin = from(cell(steps.position(step), width), label), length = static_cast<int>(label.size());
      if (begin < 2 || begin + length + 2 > width) continue;
      const auto window = line.substr(static_cast<std::size_t>(begin - 2), label.size() + 4);
      if (window.find_first_not_of(' ') == std::string::npos) put_at(begin, label);
    }
  }
  line.erase(line.find_last_not_of(' ') + 1);
  return std::string(kLabel + 1, ' ') + line + "\n";
}

std::string panel_text(const Panel& panel, const StepRange& steps, int columns) {
  const ValueRange values = value_range(panel);
  const int width = plot_width(columns);
  std::vector<std::string> rows(kRows, std::string(static_cast<std::size_t>(width), ' '));
  std::string axis(static_cast<std::size_t>(width), '-');
  for (const std::int64_t step : ticks_of(steps, width))
    axis[static_cast<std::size_t>(cell(steps.position(step), width))] = '+';
  const auto place = [&](const Point& point) -> char& {
    const auto x = static_cast<std::size_t>(cell(steps.position(point.step), width));
    if (!values.shows(point.value)) return axis[x];
    return rows[static_cast<std::size_t>(kRows - 1 - cell(values.position(point.value), kRows))][x];
  };
  for (std::size_t run = 0; run < panel.curves.size(); ++run)
    for (const Point& point : panel.curves[run]) {
      if (values.shows(point.value))
        put(place(point), letter_of(run, panel.curves.size()));
      else
        place(point) = '!';
    }
  for (const std::vector<Point>& marks : panel.marks)
    for (const Point& mark : marks) place(mark) = values.shows(mark.value) ? 'o' : '!';

  std::string text = fmt::format("{:>{}} {}{}\n", "", kLabel, panel.title, values.is_log ? ", logarithmic" : "");
  for (int row = 0; row < kRows; ++row) {
    const std::string label = row == 0           ? fmt::format("{:.5g}", values.high)
                              : row == kRows - 1 ? fmt::format("{:.5g}", values.low)
                                                 : std::string();
    std::string& cells = rows[static_cast<std::size_t>(row)];
    cells.erase(cells.find_last_not_of(' ') + 1);
    text += fmt::format("{:>{}}|{}\n", label, kLabel, cells);
  }
  return text + fmt::format("{:>{}}+{}\n", "", kLabel, axis);
}

}  // namespace

std::string terminal_plot(const std::vector<PlottedRun>& runs, int columns, LossAxis axis) {
  columns = std::max(columns, kFewestColumns);
  const StepRange steps = step_range(runs);
  std::string text;
  for (const Panel& panel : panels_of(runs, axis)) text += panel_text(panel, steps, columns);
  return text + step_labels(steps, columns);
}

}  // namespace tessera::telemetry
