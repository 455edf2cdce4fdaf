#include "tessera/checkpoint/cover.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

namespace tessera::checkpoint {
namespace {

using layout::Box;

std::string describe(const Box& box) {
  return fmt::format("rows [{}, {}) cols [{}, {})", box.row, box.row + box.rows, box.col, box.col + box.cols);
}

bool inside(layout::Shape shape, const Box& box) {
  const auto fits = [](std::int64_t begin, std::int64_t size, std::int64_t whole) {
    return begin >= 0 && size > 0 && size <= whole && begin <= whole - size;
  };
  return fits(box.row, box.rows, shape.rows) && fits(box.col, box.cols, shape.cols);
}

// The row at which a box begins or ends. If a box ends at the row at which another box begins, the end comes first.
struct Event {
  std::int64_t row;
  bool begins;
  std::size_t box;
};

std::vector<Event> events_of(std::span<const Box> boxes) {
  std::vector<Event> events;
  events.reserve(2 * boxes.size());
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    events.push_back({boxes[i].row, true, i});
    events.push_back({boxes[i].row + boxes[i].rows, false, i});
  }
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return std::tie(a.row, a.begins) < std::tie(b.row, b.begins); });
  return events;
}

// Visits the rows in order and keeps the boxes that contain the current row, by first column.
std::optional<std::string> overlap(std::span<const Box> boxes) {
  std::map<std::int64_t, std::size_t> open;
  for (const Event& event : events_of(boxes)) {
    const Box& box = boxes[event.box];
    if (!event.begins) {
      open.erase(box.col);
      continue;
    }
    const auto next = open.lower_bound(box.col);
    if (next != open.end() && next->first < box.col + box.cols)
      return fmt::format("{} and {} overlap", describe(box), describe(boxes[next->second]));
    if (next != open.begin()) {
      const Box& before = boxes[std::prev(next)->second];
      if (before.col + before.cols > box.col) return fmt::format("{} and {} overlap", describe(before), describe(box));
    }
    open.emplace(box.col, event.box);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> cover_fault(layout::Shape shape, std::span<const Box> boxes) {
  for (const Box& box : boxes)
    if (!inside(shape, box))
      return fmt::format("a piece of {} x {} elements at row {}, col {} is not inside the {} x {} matrix", box.rows,
                         box.cols, box.row, box.col, shape.rows, shape.cols);
  if (auto fault = overlap(boxes)) return fault;
  std::int64_t covered = 0;
  for (const Box& box : boxes) covered += box.elements();
  if (covered != shape.elements()) return fmt::format("its pieces cover {} of {} elements", covered, shape.elements());
  return std::nullopt;
}

}  // namespace tessera::checkpoint
