#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "tessera/base/text/printable.h"
#include "tessera/telemetry/plot/draw.h"
#include "tessera/telemetry/plot/panel.h"
#include "tessera/telemetry/plot/ticks.h"

namespace tessera::telemetry {
namespace {

constexpr double kWidth = 900, kLeft = 90, kRight = 20, kPanel = 190, kGap = 46, kTop = 24, kLegendLine = 18;
constexpr std::array<const char*, 8> kColours{"#4c8dd6", "#d9603f", "#3aa65c", "#8f78d8",
                                              "#c98a2b", "#cf5c93", "#35a3a8", "#7d93ab"};
constexpr double kDigit = 6.5, kSpace = 12;  // width of a digit, and the least distance of two labels
constexpr int kStepTicks = 10, kValueTicks = 6;
constexpr const char* kInk = "#808080";
constexpr const char* kNotFinite = "#e03030";

const char* colour_of(std::size_t run) {
  return kColours[run % kColours.size()];
}

// Returns the text as XML 1.0 can hold it. XML forbids control characters and the two characters U+FFFE and U+FFFF.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : base::printable(text)) {
    if (letter == '<')
      result += "&lt;";
    else if (letter == '>')
      result += "&gt;";
    else if (letter == '&')
      result += "&amp;";
    else if (letter == '"')
      result += "&quot;";
    else
      result += letter;
    if (result.ends_with("\xEF\xBF\xBE") || result.ends_with("\xEF\xBF\xBF")) result.replace(result.size() - 3, 3, "?");
  }
  return result;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* colour = kInk) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", x, y, anchor, colour,
                     escaped(text));
}

// One panel's place in the drawing.
struct Frame {
  StepRange steps;
  ValueRange values;
  double top = 0;
  double x(std::int64_t step) const { return kLeft + steps.position(step) * (kWidth - kLeft - kRight); }
  double y(double value) const { return top + (1 - values.position(value)) * kPanel; }
};

// Returns the points of consecutive values that the axis shows: for each column of pixels the first, lowest, highest
// and last value.
std::string line_of(const std::vector<Point>& points, const Frame& frame, const char* colour) {
  std::string path;
  std::size_t begin = 0;
  const auto column = [&](std::size_t at) { return std::floor(frame.x(points[at].step)); };
  while (begin < points.size()) {
    std::size_t end = begin, low = begin, high = begin;
    for (; end < points.size() && column(end) == column(begin); ++end) {
      if (points[end].value < points[low].value) low = end;
      if (points[end].value > points[high].value) high = end;
    }
    std::array<std::size_t, 4> shown{begin, std::min(low, high), std::max(low, high), end - 1};
    for (std::size_t i = 0; i < shown.size(); ++i)
      if (i == 0 || shown[i] != shown[i - 1])
        path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", frame.x(points[shown[i]].step),
                            frame.y(points[shown[i]].value));
    begin = end;
  }
  if (points.size() == 1)
    return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"2.5\" fill=\"{}\"/>\n", frame.x(points[0].step),
                       frame.y(points[0].value), colour);
  return fmt::format("<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" points=\"{}\"/>\n", colour, path);
}

// Returns a red tick on the step axis at column x for a value that the axis of values cannot show.
std::string not_finite_tick(double x, const Frame& frame) {
  return fmt::format(
      "<line class=\"not-finite\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\" stroke=\"{3}\"/>\n", x,
      frame.top + kPanel - 8, frame.top + kPanel, kNotFinite);
}

std::string curve_of(const std::vector<Point>& curve, const Frame& frame, const char* colour) {
  std::string text;
  std::vector<Point> stretch;
  std::map<double, bool> ticks;  // key: the column of pixels
  const auto end_stretch = [&] {
    if (!stretch.empty()) text += line_of(stretch, frame, colour);
    stretch.clear();
  };
  for (const Point& point : curve) {
    if (frame.values.shows(point.value)) {
      stretch.push_back(point);
      continue;
    }
    end_stretch();
    ticks[std::floor(frame.x(point.step))] = true;
  }
  end_stretch();
  for (const auto& [x, is_set] : ticks) text += not_finite_tick(x, frame);
  return text;
}

std::string mark_of(const Point& mark, const Frame& frame, const char* colour) {
  if (!frame.values.shows(mark.value)) return not_finite_tick(frame.x(mark.step), frame);
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"none\" stroke=\"{}\"/>\n", frame.x(mark.step),
                     frame.y(mark.value), colour);
}

std::string line_at(double x1, double y1, double x2, double y2, double opacity) {
  return fmt::format(
      "<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" stroke-opacity=\"{}\"/>\n", x1, y1,
      x2, y2, kInk, opacity);
}

double label_width(const std::string& label) {
  return kDigit * static_cast<double>(label.size());
}

// Returns the ticks of the step axis. The first and the last step have labels, and each tick whose label has space.
std::string step_axis(const Frame& frame) {
  const double bottom = frame.top + kPanel, right = kWidth - kRight, baseline = bottom + 16;
  const std::string first = fmt::format("step {}", frame.steps.first), last = fmt::format("step {}", frame.steps.last);
  if (frame.steps.first == frame.steps.last) return text_at((kLeft + right) / 2, baseline, "middle", first);
  std::string text = text_at(kLeft, baseline, "start", first) + text_at(right, baseline, "end", last);
  double taken = kLeft + label_width(first);  // right end of the previous label
  const int most = std::min(kStepTicks, static_cast<int>((right - kLeft) / (label_width(last) + kSpace)));
  for (const std::int64_t step : step_ticks(frame.steps, std::max(most, 2))) {
    const double x = frame.x(step);
    text += line_at(x, bottom, x, bottom + 4, 1);
    const std::string label = std::to_string(step);
    const double half = label_width(label) / 2;
    if (x - half < taken + kSpace || x + half > right - label_width(last) - kSpace) continue;
    text += text_at(x, baseline, "middle", label);
    taken = x + half;
  }
  return text;
}

// Returns the labels of the lowest and the highest value, and lines at round values between the two.
std::string value_axis(const Frame& frame) {
  const double bottom = frame.top + kPanel, right = kWidth - kRight;
  std::string text = text_at(kLeft - 6, frame.top + 10, "end", fmt::format("{:.5g}", frame.values.high)) +
                     text_at(kLeft - 6, bottom, "end", fmt::format("{:.5g}", frame.values.low));
  for (const double value : value_ticks(frame.values, kValueTicks)) {
    const double y = frame.y(value);
    text += line_at(kLeft, y, right, y, 0.2);
    if (y > frame.top + 26 && y < bottom - 14) text += text_at(kLeft - 6, y + 4, "end", fmt::format("{:.5g}", value));
  }
  return text;
}

std::string panel_of(const Panel& panel, const Frame& frame) {
  std::string text = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" stroke=\"{}\" "
      "stroke-opacity=\"0.5\"/>\n",
      kLeft, frame.top, kWidth - kLeft - kRight, kPanel, kInk);
  text += text_at(kLeft, frame.top - 6, "start", panel.title + (frame.values.is_log ? ", logarithmic" : ""));
  text += value_axis(frame) + step_axis(frame);
  for (std::size_t run = 0; run < panel.curves.size(); ++run) {
    text += curve_of(panel.curves[run], frame, colour_of(run));
    for (const Point& mark : panel.marks[run]) text += mark_of(mark, frame, colour_of(run));
  }
  return text;
}

}  // namespace

std::string svg_of(const std::vector<PlottedRun>& runs, LossAxis axis) {
  const std::vector<Panel> panels = panels_of(runs, axis);
  const double legend = kLegendLine * static_cast<double>(runs.size());
  const double height = kTop + legend + static_cast<double>(panels.size()) * (kPanel + kGap);
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"11\">\n",
      kWidth, height);
  for (std::size_t run = 0; run < runs.size(); ++run)
    text += text_at(kLeft, 14 + kLegendLine * static_cast<double>(run), "start", runs[run].name, colour_of(run));
  for (std::size_t i = 0; i < panels.size(); ++i)
    text += panel_of(panels[i], {.steps = step_range(runs),
                                 .values = value_range(panels[i]),
                                 .top = kTop + legend + static_cast<double>(i) * (kPanel + kGap)});
  return text + "</svg>\n";
}

}  // namespace tessera::telemetry
