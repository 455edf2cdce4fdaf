// Groups parameters into units that travel together: small parameters that are used in the same passes, and are
// adjacent in the order of first use. The gradients of vectors need not be adjacent: a transfer of their few bytes
// takes as long as its latency, and they can wait for the last of them.
#include <algorithm>
#include <iterator>
#include <map>
#include <span>
#include <utility>

#include "tessera/schedule/plan/plan.h"

namespace tessera::schedule {
namespace {

// The microbatches and passes in which a parameter has events of one kind. All parameters of a unit have equal
// occurrences.
struct Occurrences {
  ParameterId parameter = kNoParameter;
  std::vector<std::pair<int, Pass>> places;
};

std::vector<Occurrences> occurrences(const Trace& trace, EventKind kind) {
  std::vector<Occurrences> found;
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

// Joins parameters that are adjacent in `order` into units of at most `limit` bytes. Skips parameters for which
// bytes_of returns 0, because they need no bytes.
template <typename BytesOf, typename Joins>
std::vector<Unit> join(std::span<const Occurrences> order, std::int64_t limit, BytesOf bytes_of, Joins join) {
  std::vector<Unit> units;
  std::int64_t unit_bytes = 0;  // number of bytes of the newest unit
  const Occurrences* before = nullptr;
  for (const Occurrences& next : order) {
    const std::int64_t bytes = bytes_of(next.parameter);
    if (bytes == 0) continue;
    const bool together = before && join(before->parameter, next.parameter) && before->places == next.places &&
                          unit_bytes + bytes <= limit;
    if (!together) {
      units.emplace_back();
      unit_bytes = 0;
    }
    units.back().push_back(next.parameter);
    unit_bytes += bytes;
    before = &next;
  }
  return units;
}

std::vector<std::int64_t> bytes_by_unit(const std::vector<Unit>& units, const std::vector<ParameterSize>& sizes,
                                        std::int64_t ParameterSize::*bytes) {
  std::vector<std::int64_t> by_unit;
  for (const Unit& unit : units) {
    by_unit.push_back(0);
    for (const ParameterId id : unit) by_unit.back() += aligned(sizes[static_cast<std::size_t>(id)].*bytes);
  }
  return by_unit;
}

std::vector<int> domains_of(const std::vector<Unit>& units, const std::vector<ParameterSize>& sizes) {
  std::vector<int> domains;
  for (const Unit& unit : units) domains.push_back(sizes[static_cast<std::size_t>(unit.front())].domain);
  return domains;
}

}  // namespace

void plan_units(const Trace& trace, const std::vector<ParameterSize>& sizes, std::int64_t coalesce_bytes,
                Schedule& schedule) {
  auto size = [&](ParameterId id) -> const ParameterSize& { return sizes[static_cast<std::size_t>(id)]; };
  // A weight that stays in place needs only the bytes of its columnwise copy.
  const auto bytes_of_weight = [&](ParameterId id) {
    const std::int64_t bytes = aligned(size(id).gathered) + aligned(size(id).unpacked);
    return bytes > 0 ? bytes : aligned(size(id).columnwise);
  };
  const auto staging = [&](ParameterId id) { return aligned(size(id).staging); };
  std::int64_t largest_gather = 0, largest_staging = 0;  // a unit is not larger than the largest parameter
  for (ParameterId id = 0; id < static_cast<ParameterId>(sizes.size()); ++id) {
    largest_gather = std::max(largest_gather, bytes_of_weight(id));
    largest_staging = std::max(largest_staging, staging(id));
  }
  const auto of_one_domain = [&](ParameterId a, ParameterId b) { return size(a).domain == size(b).domain; };
  const auto join_equal = [&](ParameterId a, ParameterId b) {
    return size(a).joins() && size(b).joins() && of_one_domain(a, b) &&
           (size(a).unpacked > 0) == (size(b).unpacked > 0) && (size(a).columnwise > 0) == (size(b).columnwise > 0) &&
           (size(a).gathered + size(a).unpacked > 0) == (size(b).gathered + size(b).unpacked > 0);
  };
  schedule.gather_units = join(occurrences(trace, EventKind::consume), std::min(coalesce_bytes, largest_gather),
                               bytes_of_weight, join_equal);
  schedule.gather_bytes = bytes_by_unit(schedule.gather_units, sizes, &ParameterSize::gathered);
  schedule.unpacked_bytes = bytes_by_unit(schedule.gather_units, sizes, &ParameterSize::unpacked);
  schedule.columnwise_bytes = bytes_by_unit(schedule.gather_units, sizes, &ParameterSize::columnwise);
  std::vector<Occurrences> produced = occurrences(trace, EventKind::produce);
  const auto vectors =
      std::ranges::stable_partition(produced, [&](const Occurrences& it) { return !size(it.parameter).is_vector; });
  for (const std::span<const Occurrences> part : {std::span(produced.begin(), vectors.begin()), std::span(vectors)})
    std::ranges::move(join(part, std::min(coalesce_bytes, largest_staging), staging, of_one_domain),
                      std::back_inserter(schedule.reduce_units));
  schedule.reduce_bytes = bytes_by_unit(schedule.reduce_units, sizes, &ParameterSize::staging);
  schedule.scratch_bytes = bytes_by_unit(schedule.reduce_units, sizes, &ParameterSize::scratch);
  for (const std::int64_t bytes : schedule.scratch_bytes) schedule.scratch = std::max(schedule.scratch, bytes);
  schedule.gather_domains = domains_of(schedule.gather_units, sizes);
  schedule.reduce_domains = domains_of(schedule.reduce_units, sizes);
}

}  // namespace tessera::schedule
