// Where every gathered weight lies, from when to when.
#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/schedule/plan/arena.h"
#include "tessera/schedule/plan/plan.h"

namespace tessera::schedule {
namespace {

// A stretch in which some member of a unit is consumed and not yet released.
struct Use {
  int unit = 0, first = 0, last = 0;  // event indices of the consume and the release
  int next = kNever;                  // `first` of the unit's next use
};

std::vector<Use> uses_of(const Trace& trace, const Schedule& schedule, std::vector<int>& published) {
  std::vector<int> unit_of;
  for (int unit = 0; unit < static_cast<int>(schedule.gather_units.size()); ++unit)
    for (const ParameterId member : schedule.gather_units[static_cast<std::size_t>(unit)]) {
      unit_of.resize(std::max(unit_of.size(), static_cast<std::size_t>(member) + 1), -1);
      unit_of[static_cast<std::size_t>(member)] = unit;
    }
  const std::size_t units = schedule.gather_units.size();
  std::vector<int> users(units, 0), open(units, -1);
  published.assign(units, std::min(-1, -schedule.optimizer_events()));
  std::vector<Use> uses;
  for (int index = 0; index < schedule.events; ++index) {
    const Event& event = trace[static_cast<std::size_t>(index)];
    const auto parameter = static_cast<std::size_t>(event.parameter);
    if (event.parameter < 0 || parameter >= unit_of.size() || unit_of[parameter] < 0) continue;
    const int unit = unit_of[parameter];
    const auto u = static_cast<std::size_t>(unit);
    if (event.kind == EventKind::publish) published[u] = std::max(published[u], schedule.position_of(index));
    if (event.kind == EventKind::consume && users[u]++ == 0) {
      open[u] = static_cast<int>(uses.size());
      uses.push_back({unit, index, -1});
    }
    if (event.kind != EventKind::release) continue;
    TESSERA_CHECK(users[u] > 0, "event {}: parameter {} is released and not consumed", index, event.parameter);
    if (--users[u] == 0) uses[static_cast<std::size_t>(open[u])].last = index;
  }
  std::vector<int> next(units, kNever);
  for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
    TESSERA_CHECK(use->last >= 0, "event {}: unit {} is consumed and never released", use->first, use->unit);
    use->next = std::exchange(next[static_cast<std::size_t>(use->unit)], use->first);
  }
  return uses;
}

// Places the uses one after the other in `limit` bytes: at the given offsets, or, without any, where the arena finds a
// place. Null where it finds none.
std::optional<std::vector<Residency>> place(const std::vector<Use>& uses, const std::vector<int>& published,
                                            const std::vector<std::int64_t>& bytes, std::int64_t limit,
                                            std::span<const std::int64_t> offsets = {}) {
  Arena arena(limit);
  std::vector<int> stay(bytes.size(), -1);  // by unit: its residency while it is in the arena
  std::vector<Residency> residencies;
  for (std::size_t i = 0; i < uses.size(); ++i) {
    const Use& use = uses[i];
    const auto unit = static_cast<std::size_t>(use.unit);
    int free = published[unit];
    if (stay[unit] >= 0) {
      Residency& residency = residencies[static_cast<std::size_t>(stay[unit])];
      if (offsets.empty() || offsets[i] == residency.offset) {
        residency.last = use.last;
        arena.use_again(residency.offset, use.last, use.next);
        continue;
      }
      free = std::max(free, arena.remove(residency.offset).last);
    }
    const auto found = offsets.empty() ? arena.find(bytes[unit], use.first) : offsets[i];
    if (!found) return std::nullopt;
    for (const Tenant& gone : arena.put({*found, bytes[unit], use.unit, use.last, use.next})) {
      free = std::max(free, gone.last);
      stay[static_cast<std::size_t>(gone.owner)] = -1;
    }
    const int issue = residencies.empty() ? free : std::max(free, residencies.back().issue);
    stay[unit] = static_cast<int>(residencies.size());
    residencies.push_back(
        {.unit = use.unit, .issue = issue, .free = free, .wait = use.first, .last = use.last, .offset = *found});
  }
  return residencies;
}

std::int64_t end_of(const std::vector<Residency>& residencies, const std::vector<std::int64_t>& bytes) {
  std::int64_t end = 0;
  for (const Residency& residency : residencies)
    end = std::max(end, residency.offset + bytes[static_cast<std::size_t>(residency.unit)]);
  return end;
}

// The greatest sum of bytes that hold weights, or wait for them, at a time.
std::int64_t live_peak(const std::vector<Residency>& residencies, const std::vector<std::int64_t>& bytes) {
  std::map<int, std::int64_t> changes;  // by position
  for (const Residency& residency : residencies) {
    changes[residency.issue] += bytes[static_cast<std::size_t>(residency.unit)];
    changes[residency.last] -= bytes[static_cast<std::size_t>(residency.unit)];
  }
  std::int64_t live = 0, peak = 0;
  for (const auto& [position, change] : changes) peak = std::max(peak, live += change);
  return peak;
}

}  // namespace

void plan_gathers(const Trace& trace, std::int64_t budget, Schedule& schedule) {
  const std::vector<std::int64_t>& bytes = schedule.gather_bytes;
  std::vector<int> published;
  const std::vector<Use> uses = uses_of(trace, schedule, published);
  std::vector<Stretch> stretches;
  for (const Use& use : uses) stretches.push_back({use.first, use.last, bytes[static_cast<std::size_t>(use.unit)]});
  const std::vector<std::int64_t> lowest = first_fit(stretches);
  auto smallest = *place(uses, published, bytes, kUnlimited, lowest);
  if (auto tried = place(uses, published, bytes, end_of(smallest, bytes)); tried && tried->size() <= smallest.size())
    smallest = std::move(*tried);
  const std::int64_t minimum = end_of(smallest, bytes);
  if (budget != kMinimum && budget < minimum)
    throw InputError("the budget for gathered weights is {} bytes; the smallest that can run is {}", budget, minimum);
  auto best = std::move(smallest);
  auto improve = [&](std::int64_t limit) {
    if (limit <= minimum) return;
    auto tried = place(uses, published, bytes, limit);
    if (tried && tried->size() <= best.size()) best = std::move(*tried);
  };
  improve(budget);
  if (const std::int64_t live = live_peak(best, bytes); live < end_of(best, bytes))
    improve(live);  // what no gather needs is given back
  schedule.residencies = std::move(best);
  schedule.gather_arena = end_of(schedule.residencies, bytes);
}

}  // namespace tessera::schedule
