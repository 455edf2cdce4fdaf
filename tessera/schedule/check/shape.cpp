#include "tessera/schedule/check/shape.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "tessera/schedule/check/vector_clock.h"

namespace tessera::schedule {
namespace {

bool exists(int index, std::size_t count) {
  return index >= 0 && static_cast<std::size_t>(index) < count;
}

bool contains(const Unit& unit, ParameterId parameter) {
  return std::ranges::find(unit, parameter) != unit.end();
}

bool is_of_parameter(EventKind kind) {
  return kind == EventKind::consume || kind == EventKind::release || kind == EventKind::produce ||
         kind == EventKind::publish;
}

// Returns whether the event at `index` has this kind and a parameter of this unit. The event must exist.
bool is_event_of(const Trace& trace, int index, EventKind kind, const Unit& unit) {
  const Event& event = trace[static_cast<std::size_t>(index)];
  return event.kind == kind && contains(unit, event.parameter);
}

// Returns whether `bytes` at `offset` fit into an arena of `arena` bytes. Does not overflow for any values.
bool fits(std::int64_t offset, std::int64_t bytes, std::int64_t arena) {
  return offset >= 0 && bytes >= 0 && bytes <= arena && offset <= arena - bytes;
}

void check_members(const char* kind, const std::vector<Unit>& units, std::size_t parameters, CheckFaults& faults) {
  std::vector<int> unit_of(parameters, kNoUnit);
  for (std::size_t unit = 0; unit < units.size() && !faults.full(); ++unit) {
    if (units[unit].empty()) faults.add("{} unit {} has no members", kind, unit);
    for (const ParameterId id : units[unit]) {
      if (!exists(id, parameters)) {
        faults.add("{} unit {}: expected parameters below {}, got {}", kind, unit, parameters, id);
        continue;
      }
      int& of = unit_of[static_cast<std::size_t>(id)];
      if (of != kNoUnit)
        faults.add("{} is a member of the {} units {} and {}, expected one", faults.parameter(id), kind, of, unit);
      of = static_cast<int>(unit);
    }
  }
}

struct UnitBytes {
  const char* kind;
  const char* of;  // the name of the bytes' owner in messages
  const std::vector<Unit>& units;
  const std::vector<std::int64_t>& bytes;
  std::int64_t ParameterSize::*size;
};

// Ignores members that do not exist.
void check_bytes(const UnitBytes& all, const std::vector<ParameterSize>& sizes, CheckFaults& faults) {
  if (all.units.size() != all.bytes.size())
    return faults.add("{} units: expected one size each ({}), got {}", all.kind, all.units.size(), all.bytes.size());
  for (std::size_t unit = 0; unit < all.units.size() && !faults.full(); ++unit) {
    std::int64_t needed = 0;
    for (const ParameterId id : all.units[unit])
      if (exists(id, sizes.size())) needed += sizes[static_cast<std::size_t>(id)].*all.size;
    if (all.bytes[unit] < needed)
      faults.add("{} unit {} {}: expected at least {} bytes for its {}, got {}", all.kind, unit,
                 faults.unit(all.units[unit]), needed, all.of, all.bytes[unit]);
  }
}

// Checks that all members of a unit have one domain, because they travel as one message over its ranks.
void check_domains(const char* kind, const std::vector<Unit>& units, const std::vector<int>& domains,
                   const std::vector<ParameterSize>& sizes, CheckFaults& faults) {
  if (domains.size() != units.size())
    return faults.add("{} units: expected one domain each ({}), got {}", kind, units.size(), domains.size());
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    if (domains[unit] < 0 || domains[unit] >= kMaxCheckedDomains)
      faults.add("{} unit {} {}: expected a domain from 0 to {}, got {}", kind, unit, faults.unit(units[unit]),
                 kMaxCheckedDomains - 1, domains[unit]);
    for (const ParameterId id : units[unit])
      if (const int domain = sizes[static_cast<std::size_t>(id)].domain; domain != domains[unit])
        faults.add("{} unit {} {}: expected members of domain {}, got {} of domain {}", kind, unit,
                   faults.unit(units[unit]), domains[unit], faults.parameter(id), domain);
  }
}

// Checks that the members of a unit are all unpacked or all used without unpacking, and that all of them have
// columnwise copies or all of them are without. Members with copies are not unpacked, and are all gathered or all in
// place.
void check_stages(const std::vector<ParameterSize>& sizes, const Schedule& schedule, CheckFaults& faults) {
  for (std::size_t unit = 0; unit < schedule.gather_units.size(); ++unit)
    for (const ParameterId id : schedule.gather_units[unit]) {
      const ParameterSize& size = sizes[static_cast<std::size_t>(id)];
      const int number = static_cast<int>(unit);
      const auto expected = [&](const char* members) {
        faults.add("gather unit {} {}: expected members that are {}, got {}", unit,
                   faults.unit(schedule.gather_units[unit]), members, faults.parameter(id));
      };
      if ((size.unpacked > 0) != schedule.unpacks(number)) expected("all unpacked or all used without unpacking");
      if ((size.columnwise > 0) != schedule.copies_columnwise(number))
        expected("all with or all without columnwise copies");
      if (size.columnwise > 0 && size.unpacked > 0) expected("either unpacked or copied");
      if (size.columnwise > 0 && (size.gathered == 0) != schedule.stays_in_place(number))
        expected("all gathered or all in place");
    }
}

}  // namespace

std::vector<int> units_by_parameter(const std::vector<Unit>& units, std::size_t parameters) {
  std::vector<int> unit_of(parameters, kNoUnit);
  for (std::size_t unit = 0; unit < units.size(); ++unit)
    for (const ParameterId id : units[unit])
      if (exists(id, parameters)) unit_of[static_cast<std::size_t>(id)] = static_cast<int>(unit);
  return unit_of;
}

void check_trace(const Trace& trace, std::size_t parameters, const Schedule& schedule, CheckFaults& faults) {
  const auto last =
      std::find_if(trace.rbegin(), trace.rend(), [](const Event& event) { return event.microbatch >= 0; });
  const auto body = static_cast<int>(last.base() - trace.begin());
  if (schedule.events != static_cast<int>(trace.size()))
    faults.add("the schedule is for {} events, but the trace has {}", schedule.events, trace.size());
  if (schedule.body != body)
    faults.add("the schedule's body has {} events, but the trace's body has {}", schedule.body, body);
  const std::uint64_t hash = hash_trace(trace);
  if (schedule.trace_hash != hash)
    faults.add("the schedule is for a trace of hash {:016x}, but this trace has {:016x}", schedule.trace_hash, hash);

  int microbatches = 0;
  for (int index = 0; index < static_cast<int>(trace.size()) && !faults.full(); ++index) {
    const Event& event = trace[static_cast<std::size_t>(index)];
    microbatches = std::max(microbatches, event.microbatch + 1);
    if (is_of_parameter(event.kind) && !exists(event.parameter, parameters))
      faults.add("{}: expected a parameter below {}", faults.event(index), parameters);
    if (event.step != schedule.kind)
      faults.add("{}: expected only events of kind {}", faults.event(index), name_of(schedule.kind));
    if (index < body && event.kind == EventKind::publish)
      faults.add("{}: expected the optimizer's publish events after the last microbatch", faults.event(index));
    if (index >= body && event.kind != EventKind::publish && event.kind != EventKind::comm)
      faults.add("{}: expected only publish events and collectives after the last microbatch", faults.event(index));
    if (schedule.kind == StepKind::evaluate && (event.kind == EventKind::publish || event.kind == EventKind::produce))
      faults.add("{}: expected no gradients and no new weights in an evaluation", faults.event(index));
  }
  if (schedule.microbatches != microbatches)
    faults.add("the schedule has {} microbatches, but the trace has {}", schedule.microbatches, microbatches);
}

void check_units(const std::vector<ParameterSize>& sizes, const Schedule& schedule, CheckFaults& faults) {
  check_members("gather", schedule.gather_units, sizes.size(), faults);
  check_members("reduce", schedule.reduce_units, sizes.size(), faults);
  for (const UnitBytes& bytes :
       {UnitBytes{"gather", "members", schedule.gather_units, schedule.gather_bytes, &ParameterSize::gathered},
        UnitBytes{"gather", "members unpacked", schedule.gather_units, schedule.unpacked_bytes,
                  &ParameterSize::unpacked},
        UnitBytes{"gather", "columnwise copies", schedule.gather_units, schedule.columnwise_bytes,
                  &ParameterSize::columnwise},
        UnitBytes{"reduce", "members", schedule.reduce_units, schedule.reduce_bytes, &ParameterSize::staging},
        UnitBytes{"reduce", "exchanges", schedule.reduce_units, schedule.scratch_bytes, &ParameterSize::scratch}})
    check_bytes(bytes, sizes, faults);
  if (!faults.none()) return;
  check_stages(sizes, schedule, faults);
  check_domains("gather", schedule.gather_units, schedule.gather_domains, sizes, faults);
  check_domains("reduce", schedule.reduce_units, schedule.reduce_domains, sizes, faults);
  for (std::size_t unit = 0; unit < schedule.reduce_units.size(); ++unit)
    if (const std::int64_t bytes = schedule.scratch_bytes[unit]; schedule.scratch < bytes)
      faults.add("the exchange of {} needs {} bytes of scratch, got {}", faults.unit(schedule.reduce_units[unit]),
                 bytes, schedule.scratch);
}

void check_residencies(const Trace& trace, const Schedule& schedule, CheckFaults& faults) {
  const int earliest = std::min(-1, -schedule.optimizer_events());
  int previous = earliest;
  for (int index = 0; index < static_cast<int>(schedule.residencies.size()) && !faults.full(); ++index) {
    const Residency& it = schedule.residencies[static_cast<std::size_t>(index)];
    if (!exists(it.unit, schedule.gather_units.size())) {
      faults.add("residency {}: expected a gather unit below {}, got {}", index, schedule.gather_units.size(), it.unit);
      continue;
    }
    const auto unit = static_cast<std::size_t>(it.unit);
    const std::string name = faults.residency(index);
    if (it.issue < previous)
      faults.add("{}: expected issues in order, here at {} or later, got {}", name, previous, it.issue);
    previous = std::max(previous, it.issue);
    if (it.free < earliest || it.free > it.issue)
      faults.add("{}: expected a free position between {} and its issue", name, earliest);
    if (it.issue >= it.wait) faults.add("{}: expected the issue before the consume event that waits for it", name);
    if (it.wait < 0 || it.last <= it.wait || it.last >= schedule.body) {
      faults.add("{}: expected 0 <= wait < last < {}", name, schedule.body);
      continue;
    }
    if (!is_event_of(trace, it.wait, EventKind::consume, schedule.gather_units[unit]))
      faults.add("{}: expected a consume event of the unit at its wait, got {}", name, faults.event(it.wait));
    if (!is_event_of(trace, it.last, EventKind::release, schedule.gather_units[unit]))
      faults.add("{}: expected a release event of the unit at its last, got {}", name, faults.event(it.last));
    if (!fits(it.offset, schedule.gather_bytes[unit], schedule.gather_arena))
      faults.add("{}: its {} bytes do not fit into the gather arena of {} bytes", name, schedule.gather_bytes[unit],
                 schedule.gather_arena);
    if (!schedule.unpacks(it.unit)) continue;
    if (!fits(it.unpacked_offset, schedule.unpacked_bytes[unit], schedule.gather_arena))
      faults.add("{}: its {} unpacked bytes do not fit into the gather arena of {} bytes", name,
                 schedule.unpacked_bytes[unit], schedule.gather_arena);
    else if (schedule.gather_bytes[unit] > 0 && it.offset < it.unpacked_offset + schedule.unpacked_bytes[unit] &&
             it.unpacked_offset < it.offset + schedule.gather_bytes[unit])
      faults.add("{}: its packed and its unpacked bytes overlap", name);
  }
}

void check_copies(const Trace& trace, const Schedule& schedule, CheckFaults& faults) {
  std::vector<int> newest(schedule.gather_units.size(), -1);
  int previous = 0;
  for (int index = 0; index < static_cast<int>(schedule.copies.size()) && !faults.full(); ++index) {
    const ColumnwiseCopy& it = schedule.copies[static_cast<std::size_t>(index)];
    if (!exists(it.unit, schedule.gather_units.size()) || !schedule.copies_columnwise(it.unit)) {
      faults.add("columnwise copy {}: expected a gather unit with copies, got unit {}", index, it.unit);
      continue;
    }
    const auto unit = static_cast<std::size_t>(it.unit);
    const std::string name = faults.copy(index);
    if (it.make < previous) faults.add("{}: expected copies in order, but the previous one is at {}", name, previous);
    previous = std::max(previous, it.make);
    if (it.make < 0 || it.last <= it.make || it.last >= schedule.body) {
      faults.add("{}: expected 0 <= make < last < {}", name, schedule.body);
      continue;
    }
    for (const auto& [at, kind] : {std::pair(it.make, EventKind::consume), std::pair(it.last, EventKind::release)})
      if (!is_event_of(trace, at, kind, schedule.gather_units[unit]) ||
          trace[static_cast<std::size_t>(at)].pass != Pass::backward)
        faults.add("{}: expected a {} event of the unit in a backward pass, got {}", name, name_of(kind),
                   faults.event(at));
    if (!fits(it.offset, schedule.columnwise_bytes[unit], schedule.gather_arena))
      faults.add("{}: its {} bytes do not fit into the gather arena of {} bytes", name, schedule.columnwise_bytes[unit],
                 schedule.gather_arena);
    if (newest[unit] >= 0 && it.make <= schedule.copies[static_cast<std::size_t>(newest[unit])].last)
      faults.add("{}: made while {} is in use, expected one copy at a time", name, faults.copy(newest[unit]));
    newest[unit] = index;
    const auto holds = [&](const Residency& residency) {
      return residency.unit == it.unit && residency.wait <= it.make && it.last <= residency.last;
    };
    if (!schedule.stays_in_place(it.unit) && std::ranges::none_of(schedule.residencies, holds))
      faults.add("{}: expected a residency of its unit from {} to {}, got none", name, it.make, it.last);
  }
}

void check_reductions(const Trace& trace, const Schedule& schedule, CheckFaults& faults) {
  std::vector<int> newest(schedule.reduce_units.size(), -1);
  int previous = 0;
  for (int index = 0; index < static_cast<int>(schedule.reductions.size()) && !faults.full(); ++index) {
    const Reduction& it = schedule.reductions[static_cast<std::size_t>(index)];
    if (!exists(it.unit, schedule.reduce_units.size())) {
      faults.add("reduction {}: expected a reduce unit below {}, got {}", index, schedule.reduce_units.size(), it.unit);
      continue;
    }
    const auto unit = static_cast<std::size_t>(it.unit);
    const std::string name = faults.reduction(index);
    if (it.issue < previous) faults.add("{}: expected issues in order, but the previous one is at {}", name, previous);
    previous = std::max(previous, it.issue);
    if (it.first < 0 || it.issue < it.first || it.finish < it.issue || it.finish >= schedule.body) {
      faults.add("{}: expected 0 <= first <= issue <= finish < {}", name, schedule.body);
      continue;
    }
    for (const int at : {it.first, it.issue})
      if (!is_event_of(trace, at, EventKind::produce, schedule.reduce_units[unit]) ||
          trace[static_cast<std::size_t>(at)].microbatch != it.microbatch)
        faults.add("{}: expected a produce event of the unit in this microbatch, got {}", name, faults.event(at));
    if (!fits(it.offset, schedule.reduce_bytes[unit], schedule.reduce_arena))
      faults.add("{}: its {} bytes do not fit into the reduce arena of {} bytes", name, schedule.reduce_bytes[unit],
                 schedule.reduce_arena);
    if (!fits(it.scratch, schedule.scratch_bytes[unit], schedule.scratch))
      faults.add("{}: its {} bytes do not fit in the scratch of {} bytes at {}", name, schedule.scratch_bytes[unit],
                 schedule.scratch, it.scratch);
    for (const int earlier : it.scratch_waits)
      if (earlier < 0 || earlier >= index)
        faults.add("{}: waits for the sum of reduction {}, expected an earlier one", name, earlier);
    if (newest[unit] >= 0 && it.first <= schedule.reductions[static_cast<std::size_t>(newest[unit])].issue)
      faults.add("{}: begins before the issue of {}, the unit's previous reduction", name,
                 faults.reduction(newest[unit]));
    newest[unit] = index;
  }
  if (!faults.none()) return;
  for (int index = 0; index < static_cast<int>(schedule.reductions.size()); ++index) {
    const Reduction& it = schedule.reductions[static_cast<std::size_t>(index)];
    const bool is_last = newest[static_cast<std::size_t>(it.unit)] == index;
    if (it.replicas != is_last)
      faults.add("{}, {}: expected replicas {}, got {}", faults.reduction(index),
                 is_last ? "the unit's last reduction of the step" : "not the unit's last reduction of the step",
                 is_last, it.replicas);
  }
}

std::vector<int> match_produces(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                                CheckFaults& faults) {
  const std::vector<int> unit_of = units_by_parameter(schedule.reduce_units, sizes.size());
  auto key = [&](int unit, int microbatch) {
    return static_cast<std::int64_t>(unit) * (schedule.microbatches + 1) + microbatch;
  };
  std::unordered_map<std::int64_t, int> by_key;
  for (int index = 0; index < static_cast<int>(schedule.reductions.size()); ++index) {
    const Reduction& it = schedule.reductions[static_cast<std::size_t>(index)];
    const auto [at, is_new] = by_key.emplace(key(it.unit, it.microbatch), index);
    if (!is_new)
      faults.add("{}: takes the same gradients as reduction {}, expected one reduction", faults.reduction(index),
                 at->second);
  }
  std::vector<int> taken(trace.size(), -1);
  std::vector<bool> written(sizes.size(), false);
  for (int index = 0; index < schedule.body && !faults.full(); ++index) {
    const Event& event = trace[static_cast<std::size_t>(index)];
    if (event.kind != EventKind::produce) continue;
    const auto parameter = static_cast<std::size_t>(event.parameter);
    if (sizes[parameter].staging == 0) {
      if (written[parameter])
        faults.add("{}: expected one produce event in a step, because the gradient has no staging, got a second",
                   faults.event(index));
      written[parameter] = true;
      continue;
    }
    const int unit = unit_of[parameter];
    const auto at = by_key.find(key(unit, event.microbatch));
    if (unit == kNoUnit || at == by_key.end()) {
      faults.add("{}: expected one reduction of this gradient, got none", faults.event(index));
      continue;
    }
    const Reduction& it = schedule.reductions[static_cast<std::size_t>(at->second)];
    if (index < it.first || index > it.issue)
      faults.add("{}: outside of {}, which takes its gradient", faults.event(index), faults.reduction(at->second));
    taken[static_cast<std::size_t>(index)] = at->second;
  }
  return taken;
}

}  // namespace tessera::schedule
