// Which parameters travel together: neighbours in the order of their first use that are small and used alike.
#include <algorithm>
#include <map>
#include <utility>

#include "tessera/schedule/plan/plan.h"

namespace tessera::schedule {
namespace {

// Where a parameter meets one kind of event: parameters of one unit meet it in the same passes of the same
// microbatches.
struct Meetings {
  ParameterId parameter = kNoParameter;
  std::vector<std::pair<int, Pass>> places;
};

std::vector<Meetings> meetings(const Trace& trace, EventKind kind) {
  std::vector<Meetings> found;
  std::map<ParameterId, std::size_t> index;
  for (const Event& event : trace) {
    if (event.kind != kind) continue;
    const auto [at, is_new] = index.try_emplace(event.parameter, found.size());
    if (is_new) found.push_back({event.parameter, {}});
    found[at->second].places.emplace_back(event.microbatch, event.pass);
  }
  return found;
}

std::int64_t aligned(std::int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// Joins neighbours up to `limit` bytes; bytes_of(parameter) is 0 for those that do not travel.
template <typename BytesOf, typename Joins>
void join(const std::vector<Meetings>& order, std::int64_t limit, BytesOf bytes_of, Joins joins,
          std::vector<Unit>& units, std::vector<std::int64_t>& unit_bytes) {
  const Meetings* before = nullptr;
  for (const Meetings& next : order) {
    const std::int64_t bytes = aligned(bytes_of(next.parameter));
    if (bytes == 0) continue;
    const bool together = before && joins(before->parameter) && joins(next.parameter) &&
                          before->places == next.places && unit_bytes.back() + bytes <= limit;
    if (!together) {
      units.emplace_back();
      unit_bytes.push_back(0);
    }
    units.back().push_back(next.parameter);
    unit_bytes.back() += bytes;
    before = &next;
  }
}

}  // namespace

void plan_units(const Trace& trace, const std::vector<ParameterSize>& sizes, std::int64_t coalesce_bytes,
                Schedule& schedule) {
  auto size = [&](ParameterId id) -> const ParameterSize& { return sizes[static_cast<std::size_t>(id)]; };
  std::int64_t largest_gather = 0, largest_staging = 0;  // a unit is never larger than a parameter that travels alone
  for (const ParameterSize& each : sizes) {
    largest_gather = std::max(largest_gather, aligned(each.gathered));
    largest_staging = std::max(largest_staging, aligned(each.staging));
  }
  join(
      meetings(trace, EventKind::consume), std::min(coalesce_bytes, largest_gather),
      [&](ParameterId id) { return size(id).gathered; }, [&](ParameterId id) { return size(id).joins; },
      schedule.gather_units, schedule.gather_bytes);
  join(
      meetings(trace, EventKind::produce), std::min(coalesce_bytes, largest_staging),
      [&](ParameterId id) { return size(id).staging; }, [](ParameterId) { return true; }, schedule.reduce_units,
      schedule.reduce_bytes);
  for (const Unit& unit : schedule.reduce_units) {
    std::int64_t scratch = 0;
    for (const ParameterId id : unit) scratch += aligned(size(id).scratch);
    schedule.scratch = std::max(schedule.scratch, scratch);
  }
}

}  // namespace tessera::schedule
