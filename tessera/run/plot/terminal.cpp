#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tessera/base/printable.h"
#include "tessera/run/plot/draw.h"
#include "tessera/run/plot/panel.h"

namespace tessera::run {
namespace {

constexpr int kLabel = 10, kRows = 10, kFewestColumns = 40;  // sizes in characters

char letter_of(std::size_t run, std::size_t runs) {
  return runs == 1 ? '*' : static_cast<char>('a' + run % 26);
}

int cell(double position, int cells) {
  return std::clamp(static_cast<int>(std::lround(position * (cells - 1))), 0, cells - 1);
}

void put(char& place, char letter) {
  place = place == ' ' || place == letter ? letter : '#';
}

std::string panel_text(const Panel& panel, const AxisRange& steps, int columns) {
  const AxisRange values = value_range(panel);
  const int width = columns - kLabel - 1;
  std::vector<std::string> rows(kRows, std::string(static_cast<std::size_t>(width), ' '));
  std::string axis(static_cast<std::size_t>(width), '-');
  const auto place = [&](const Point& point) -> char& {
    const auto x = static_cast<std::size_t>(cell(steps.position(point.step), width));
    if (!std::isfinite(point.value)) return axis[x];
    return rows[static_cast<std::size_t>(kRows - 1 - cell(values.position(point.value), kRows))][x];
  };
  for (std::size_t run = 0; run < panel.curves.size(); ++run)
    for (const Point& point : panel.curves[run]) {
      if (std::isfinite(point.value))
        put(place(point), letter_of(run, panel.curves.size()));
      else
        place(point) = '!';
    }
  for (const std::vector<Point>& marks : panel.marks)
    for (const Point& mark : marks) place(mark) = std::isfinite(mark.value) ? 'o' : '!';

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

std::string terminal_plot(const std::vector<PlottedRun>& runs, int columns) {
  columns = std::max(columns, kFewestColumns);
  const AxisRange steps = step_range(runs);
  std::string text;
  for (const Panel& panel : panels_of(runs)) text += panel_text(panel, steps, columns);
  const std::string first = fmt::format("step {:.10g}", std::ceil(steps.low));
  const std::string last = fmt::format("step {:.10g}", std::floor(steps.high));
  text += fmt::format("{:>{}}{}{:>{}}\n", "", kLabel + 1, first, first == last ? "" : last,
                      std::max(0, columns - kLabel - 1 - static_cast<int>(first.size())));
  return text;
}

}  // namespace tessera::run
