// Plans the reductions: the bytes of each gradient's staging, from its first write to the end of its sum.
#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "tessera/base/error.h"
#include "tessera/schedule/plan/arena.h"
#include "tessera/schedule/plan/plan.h"

namespace tessera::schedule {
namespace {

// Returns the reductions in the order of issue, which is the order of each unit's last produce event in a microbatch.
std::vector<Reduction> reductions_of(const Trace& trace, const Schedule& schedule) {
  std::map<ParameterId, int> unit_of;
  for (int unit = 0; unit < static_cast<int>(schedule.reduce_units.size()); ++unit)
    for (const ParameterId member : schedule.reduce_units[static_cast<std::size_t>(unit)]) unit_of[member] = unit;

  std::vector<Reduction> reductions;
  std::vector<int> latest(schedule.reduce_units.size(), -1);  // index: unit; newest reduction of the unit
  for (int index = 0; index < schedule.body; ++index) {
    const Event& event = trace[static_cast<std::size_t>(index)];
    if (event.kind != EventKind::produce || !unit_of.contains(event.parameter)) continue;
    const int unit = unit_of.at(event.parameter);
    int& newest = latest[static_cast<std::size_t>(unit)];
    if (newest < 0 || reductions[static_cast<std::size_t>(newest)].microbatch != event.microbatch) {
      newest = static_cast<int>(reductions.size());
      reductions.push_back({.unit = unit, .microbatch = event.microbatch, .first = index});
    }
    reductions[static_cast<std::size_t>(newest)].issue = index;
  }
  for (const int newest : latest)
    if (newest >= 0) reductions[static_cast<std::size_t>(newest)].replicas = true;
  std::ranges::sort(reductions, {}, &Reduction::issue);
  return reductions;
}

// Places the reductions in `limit` bytes, in the order of first writes (`order`), at the given offsets. If `offsets` is
// empty, a reduction takes the bytes whose reductions were issued longest ago. A reduction must be summed before its
// bytes are reused. Returns false if a reduction finds no space.
bool place(std::vector<Reduction>& reductions, const std::vector<int>& order, const Schedule& schedule,
           std::int64_t limit, std::span<const std::int64_t> offsets = {}) {
  Arena arena(limit);
  for (std::size_t i = 0; i < order.size(); ++i) {
    Reduction& next = reductions[static_cast<std::size_t>(order[i])];
    const std::int64_t bytes = schedule.reduce_bytes[static_cast<std::size_t>(next.unit)];
    const auto found = offsets.empty() ? arena.find(bytes, next.first) : offsets[i];
    if (!found) return false;
    next.offset = *found;
    next.finish = schedule.body - 1;
    for (const Tenant& gone : arena.put({next.offset, bytes, order[i], next.issue}))
      reductions[static_cast<std::size_t>(gone.owner)].finish = next.first - 1;
  }
  return true;
}

// Exchanges take consecutive ranges of the scratch, and continue at its beginning after its end. An exchange can
// therefore begin while earlier exchanges are still summed.
void place_scratch(Schedule& schedule) {
  // The bytes of a reduction that no later reduction has taken yet. domain: the domain whose lane took the other bytes
  // of the reduction, and waits for its sum.
  struct Turn {
    std::int64_t begin = 0, end = 0;
    int reduction = 0, domain = -1;
  };
  std::vector<Turn> turns;
  std::int64_t next = 0;
  for (int i = 0; i < static_cast<int>(schedule.reductions.size()); ++i) {
    Reduction& reduction = schedule.reductions[static_cast<std::size_t>(i)];
    const auto unit = static_cast<std::size_t>(reduction.unit);
    const std::int64_t bytes = schedule.scratch_bytes[unit];
    if (bytes == 0) continue;
    if (next + bytes > schedule.scratch) next = 0;
    const std::int64_t begin = next, end = begin + bytes;
    for (Turn& turn : turns) {
      if (turn.end <= begin || end <= turn.begin) continue;
      if (turn.domain != schedule.reduce_domains[unit]) reduction.scratch_waits.push_back(turn.reduction);
      turn.domain = schedule.reduce_domains[unit];
      turn.begin = std::min(end, turn.end);  // earlier ranges that begin before these bytes do not overlap them
    }
    std::erase_if(turns, [](const Turn& turn) { return turn.begin == turn.end; });
    turns.push_back({begin, end, i});
    reduction.scratch = begin;
    next = end;
  }
}

std::int64_t end_of(const std::vector<Reduction>& reductions, const std::vector<std::int64_t>& bytes) {
  std::int64_t end = 0;
  for (const Reduction& reduction : reductions)
    end = std::max(end, reduction.offset + bytes[static_cast<std::size_t>(reduction.unit)]);
  return end;
}

}  // namespace

void plan_reductions(const Trace& trace, std::int64_t budget, Schedule& schedule) {
  const std::vector<std::int64_t>& bytes = schedule.reduce_bytes;
  std::vector<Reduction> smallest = reductions_of(trace, schedule);
  std::vector<int> order(smallest.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int i) { return smallest[static_cast<std::size_t>(i)].first; });
  std::vector<Stretch> stretches;
  for (const int i : order) {
    const Reduction& each = smallest[static_cast<std::size_t>(i)];
    stretches.push_back({each.first, each.issue, bytes[static_cast<std::size_t>(each.unit)]});
  }
  place(smallest, order, schedule, kUnlimited, first_fit(stretches));
  std::vector<Reduction> best = smallest;
  if (place(best, order, schedule, end_of(smallest, bytes))) smallest = best;
  const std::int64_t end = end_of(smallest, bytes), minimum = end + schedule.scratch;
  if (budget != kMinimum && budget < minimum)
    throw InputError("the budget for gradients in flight is {} bytes; the smallest budget that can run is {}", budget,
                     minimum);
  const bool roomy = budget > minimum && place(best, order, schedule, budget - schedule.scratch);
  schedule.reductions = roomy ? std::move(best) : std::move(smallest);
  schedule.reduce_arena = end_of(schedule.reductions, bytes);
  place_scratch(schedule);
}

}  // namespace tessera::schedule
