#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "tessera/run/plot/draw.h"
#include "tessera/run/plot/panel.h"

namespace tessera::run {
namespace {

constexpr double kWidth = 900, kLeft = 90, kRight = 20, kPanel = 190, kGap = 46, kTop = 24, kLegendLine = 18;
constexpr std::array<const char*, 8> kColours{"#4c8dd6", "#d9603f", "#3aa65c", "#8f78d8",
                                              "#c98a2b", "#cf5c93", "#35a3a8", "#7d93ab"};
constexpr const char* kInk = "#808080";
constexpr const char* kNotFinite = "#e03030";

const char* colour_of(std::size_t run) {
  return kColours[run % kColours.size()];
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '<')
      result += "&lt;";
    else if (letter == '>')
      result += "&gt;";
    else if (letter == '&')
      result += "&amp;";
    else if (letter == '"')
      result += "&quot;";
    else if (static_cast<unsigned char>(letter) < ' ')
      result += '?';
    else
      result += letter;
  }
  return result;
}

std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* colour = kInk) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"{}\">{}</text>\n", x, y, anchor, colour,
                     escaped(text));
}

// One panel's place in the drawing.
struct Frame {
  AxisRange steps, values;
  double top = 0;
  double x(double step) const { return kLeft + steps.position(step) * (kWidth - kLeft - kRight); }
  double y(double value) const { return top + (1 - values.position(value)) * kPanel; }
};

// Returns the points of consecutive finite values: for each column of pixels the first, lowest, highest and last value.
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

// Returns a tick on the axis at column x for a value that is not finite.
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
    if (std::isfinite(point.value)) {
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
  if (!std::isfinite(mark.value)) return not_finite_tick(frame.x(mark.step), frame);
  return fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"none\" stroke=\"{}\"/>\n", frame.x(mark.step),
                     frame.y(mark.value), colour);
}

std::string panel_of(const Panel& panel, const Frame& frame) {
  const double bottom = frame.top + kPanel;
  std::string text = fmt::format(
      "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" stroke=\"{}\" "
      "stroke-opacity=\"0.5\"/>\n",
      kLeft, frame.top, kWidth - kLeft - kRight, kPanel, kInk);
  text += text_at(kLeft, frame.top - 6, "start", panel.title + (frame.values.is_log ? ", logarithmic" : ""));
  text += text_at(kLeft - 6, frame.top + 10, "end", fmt::format("{:.5g}", frame.values.high));
  text += text_at(kLeft - 6, bottom, "end", fmt::format("{:.5g}", frame.values.low));
  text += text_at(kLeft, bottom + 14, "start", fmt::format("step {:.10g}", std::ceil(frame.steps.low)));
  text += text_at(kWidth - kRight, bottom + 14, "end", fmt::format("step {:.10g}", std::floor(frame.steps.high)));
  for (std::size_t run = 0; run < panel.curves.size(); ++run) {
    text += curve_of(panel.curves[run], frame, colour_of(run));
    for (const Point& mark : panel.marks[run]) text += mark_of(mark, frame, colour_of(run));
  }
  return text;
}

}  // namespace

std::string svg_of(const std::vector<PlottedRun>& runs) {
  const std::vector<Panel> panels = panels_of(runs);
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

}  // namespace tessera::run
