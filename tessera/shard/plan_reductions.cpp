// Where every gradient's staging lies, from its first write to the end of its sum.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/shard/plan.h"

namespace tessera::shard {
namespace {

// In the order of issue: the order of each unit's last produce in a microbatch.
std::vector<Reduction> reductions_of(const Trace& trace, const Schedule& schedule) {
  std::map<ParameterId, int> unit_of;
  for (int unit = 0; unit < static_cast<int>(schedule.reduce_units.size()); ++unit)
    for (const ParameterId member : schedule.reduce_units[static_cast<std::size_t>(unit)]) unit_of[member] = unit;

  std::vector<Reduction> reductions;
  std::vector<int> latest(schedule.reduce_units.size(), -1);  // each unit's newest reduction
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

// Places in the order of first writes; whoever's bytes are taken over must be summed by then. With `lowest`, the lowest
// place that can be had. False where one finds no place below `limit`.
bool place(std::vector<Reduction>& reductions, const std::vector<std::int64_t>& unit_bytes, int body,
           std::int64_t limit, bool lowest) {
  std::vector<Reduction*> order;
  for (Reduction& reduction : reductions) {
    reduction.finish = body - 1;
    order.push_back(&reduction);
  }
  std::ranges::sort(order, {}, &Reduction::first);
  auto bytes_of = [&](const Reduction& reduction) { return unit_bytes[static_cast<std::size_t>(reduction.unit)]; };
  std::vector<Reduction*> tenants;  // newest owner of its bytes, any order
  for (Reduction* next : order) {
    const std::int64_t bytes = bytes_of(*next);
    std::optional<std::int64_t> best;
    int best_issue = 0;
    auto consider = [&](std::int64_t offset) {
      if (offset < 0 || offset + bytes > limit) return;
      int issue = -1;  // the latest among those who make room
      for (const Reduction* tenant : tenants)
        if (tenant->offset < offset + bytes && offset < tenant->offset + bytes_of(*tenant)) {
          if (tenant->issue >= next->first) return;  // still being written then
          issue = std::max(issue, tenant->issue);
        }
      const auto key = [&](int latest, std::int64_t at) { return std::pair(lowest ? 0 : latest, at); };
      if (best && key(best_issue, *best) <= key(issue, offset)) return;
      best = offset;
      best_issue = issue;
    };
    consider(0);
    for (const Reduction* tenant : tenants) {
      consider(tenant->offset);
      consider(tenant->offset + bytes_of(*tenant));
      consider(tenant->offset - bytes);
    }
    if (!best) return false;
    next->offset = *best;
    std::erase_if(tenants, [&](Reduction* tenant) {
      const bool gone = tenant->offset < *best + bytes && *best < tenant->offset + bytes_of(*tenant);
      if (gone) tenant->finish = next->first - 1;
      return gone;
    });
    tenants.push_back(next);
  }
  return true;
}

std::int64_t end_of(const Schedule& schedule) {
  std::int64_t end = 0;
  for (const Reduction& reduction : schedule.reductions)
    end = std::max(end, reduction.offset + schedule.reduce_bytes[static_cast<std::size_t>(reduction.unit)]);
  return end;
}

}  // namespace

void plan_reductions(const Trace& trace, std::int64_t budget, Schedule& schedule) {
  schedule.reductions = reductions_of(trace, schedule);
  auto try_place = [&](std::int64_t limit, bool lowest) {
    return place(schedule.reductions, schedule.reduce_bytes, schedule.body, limit, lowest);
  };
  try_place(kUnlimited, true);
  const std::int64_t smallest = end_of(schedule), minimum = smallest + schedule.scratch;
  if (budget != kMinimum && budget < minimum)
    throw InputError("the budget for gradients under way is {} bytes; the smallest that can run is {}", budget,
                     minimum);
  const std::int64_t limit = budget == kMinimum ? smallest : budget - schedule.scratch;
  if (!try_place(limit, false)) try_place(limit, true);
  schedule.reduce_arena = end_of(schedule);
}

}  // namespace tessera::shard
