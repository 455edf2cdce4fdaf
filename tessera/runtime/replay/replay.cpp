#include "tessera/runtime/replay/replay.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/runtime/on_demand.h"

namespace tessera::runtime {

Replay::Replay(schedule::Trace trace, schedule::Schedule schedule, StepContext& step)
    : trace_(std::move(trace)),
      schedule_(std::move(schedule)),
      step_(step),
      random_(step.options.replay.delay_seed + static_cast<std::uint64_t>(step.parallel.rank)),
      columnwise_(trace_, schedule_, step),
      stays_(schedule_.residencies.size()),
      summed_(schedule_.reductions.size()) {
  index_events();
  place_members();
}

void Replay::index_events() {
  const auto slots = static_cast<std::size_t>(schedule_.events) + 1;
  actions_.resize(slots);
  passed_.resize(slots);
  residency_of_.assign(slots, -1);
  reduction_of_.assign(slots, -1);
  gathered_.resize(step_.entries.size());
  reduced_.resize(step_.entries.size());
  for (int unit = 0; unit < static_cast<int>(schedule_.gather_units.size()); ++unit)
    for (const schedule::ParameterId id : at(schedule_.gather_units, unit)) at(gathered_, id).unit = unit;
  for (int unit = 0; unit < static_cast<int>(schedule_.reduce_units.size()); ++unit)
    for (const schedule::ParameterId id : at(schedule_.reduce_units, unit)) at(reduced_, id).unit = unit;

  for (int i = 0; i < static_cast<int>(schedule_.residencies.size()); ++i) {
    const schedule::Residency& residency = at(schedule_.residencies, i);
    at(actions_, slot(residency.issue)).gathers.push_back(i);
    at(actions_, slot(residency.free)).fence = true;
    if (step_.options.replay.poison) index_poison(residency);
  }
  for (const schedule::ColumnwiseCopy& copy : schedule_.copies)
    if (step_.options.replay.poison)
      at(actions_, copy.last).poison.emplace_back(copy.offset, at(schedule_.columnwise_bytes, copy.unit));
  for (int i = 0; i < static_cast<int>(schedule_.reductions.size()); ++i) {
    at(actions_, at(schedule_.reductions, i).issue).reductions.push_back(i);
    at(actions_, at(schedule_.reductions, i).finish).finishes.push_back(i);
  }
  // The residencies of a unit do not overlap in time, and neither do its reductions.
  std::vector<int> residency(schedule_.gather_units.size(), -1), reduction(schedule_.reduce_units.size(), -1);
  std::vector<std::vector<int>> starts(slots), first_writes(slots);
  for (int i = 0; i < static_cast<int>(schedule_.residencies.size()); ++i)
    at(starts, at(schedule_.residencies, i).wait).push_back(i);
  for (int i = 0; i < static_cast<int>(schedule_.reductions.size()); ++i)
    at(first_writes, at(schedule_.reductions, i).first).push_back(i);
  for (int index = 0; index < schedule_.body; ++index) {
    for (const int i : at(starts, index)) at(residency, at(schedule_.residencies, i).unit) = i;
    for (const int i : at(first_writes, index)) at(reduction, at(schedule_.reductions, i).unit) = i;
    const schedule::Event& event = at(trace_, index);
    if (event.kind == schedule::EventKind::consume && at(gathered_, event.parameter).unit >= 0)
      at(residency_of_, index) = at(residency, at(gathered_, event.parameter).unit);
    if (event.kind == schedule::EventKind::produce && at(reduced_, event.parameter).unit >= 0)
      at(reduction_of_, index) = at(reduction, at(reduced_, event.parameter).unit);
  }
}

// Fills each stage of a residency with NaN at the end of its interval.
void Replay::index_poison(const schedule::Residency& residency) {
  const std::int64_t gathered = at(schedule_.gather_bytes, residency.unit);
  const std::int64_t unpacked = at(schedule_.unpacked_bytes, residency.unit);
  if (gathered > 0)
    at(actions_, unpacked > 0 ? residency.wait : residency.last).poison.emplace_back(residency.offset, gathered);
  if (unpacked > 0) at(actions_, residency.last).poison.emplace_back(residency.unpacked_offset, unpacked);
}

void Replay::place_members() {
  for (const schedule::Unit& unit : schedule_.gather_units) {
    std::int64_t offset = 0, unpacked = 0;
    for (const schedule::ParameterId id : unit) {
      at(gathered_, id).offset = offset;
      at(gathered_, id).unpacked = unpacked;
      offset += static_cast<std::int64_t>(entry(id).materializer.bytes());
      unpacked += static_cast<std::int64_t>(entry(id).materializer.unpacked_bytes());
    }
  }
  for (const schedule::Unit& unit : schedule_.reduce_units) {
    std::int64_t offset = 0;
    for (const schedule::ParameterId id : unit) {
      at(reduced_, id).offset = offset;
      offset += static_cast<std::int64_t>(entry(id).reducer.staging_bytes());
    }
  }
}

bool Replay::is_current(const Stay& stay, const schedule::Residency& residency) {
  const schedule::Unit& unit = at(schedule_.gather_units, residency.unit);
  if (!stay.issued) return false;
  for (std::size_t i = 0; i < unit.size(); ++i)
    if (stay.versions[i] != entry(unit[i]).parameter.version()) return false;
  return true;
}

bool Replay::begin_step() {
  bool prepared = true;
  next_ = 0;
  columnwise_.begin_step();
  for (std::size_t i = 0; i < stays_.size(); ++i) {
    const schedule::Residency& residency = schedule_.residencies[i];
    stays_[i].awaited = false;
    if (residency.issue >= 0 || is_current(stays_[i], residency)) continue;
    prepared = false;
    const int index = static_cast<int>(i);
    if (stays_[i].issued)
      // The weights were replaced after the gather, so the gather only has to end.
      wait(stays_[i].arrived, mesh::Transfer::gather, index);
    at(passed_, slot(residency.free)) = step_.parallel.compute->record();
    issue_gather(index);
  }
  return prepared;
}

bool Replay::ends_microbatch(int microbatch) const {
  return next_ >= schedule_.body || at(trace_, next_).microbatch != microbatch;
}

void Replay::wait(const base::Fence& fence, mesh::Transfer transfer, int index) {
  const schedule::Unit& unit = transfer == mesh::Transfer::gather
                                   ? at(schedule_.gather_units, at(schedule_.residencies, index).unit)
                                   : at(schedule_.reduce_units, at(schedule_.reductions, index).unit);
  step_.waits.until(fence, transfer, unit);
}

void Replay::delay(base::Lane& lane) {
  if (step_.options.replay.delay_seed == 0) return;
  lane.delay(std::uniform_real_distribution<double>(0, step_.options.replay.longest_delay)(random_));
}

int Replay::residency_of_next(const ParameterEntry& entry) {
  const int index = at(residency_of_, next_);
  TESSERA_CHECK(index >= 0, "event {}: '{}' has no place in the schedule", next_, entry.name());
  const Stay& stay = at(stays_, index);
  TESSERA_CHECK(is_current(stay, at(schedule_.residencies, index)),
                "event {}: '{}' was gathered {}, the stored weight has version {}", next_, entry.name(),
                stay.issued ? "in another version" : "never", entry.parameter.version());
  return index;
}

void Replay::arrive(ParameterEntry& entry, schedule::ParameterId id) {
  const int index = residency_of_next(entry);
  const schedule::Residency& residency = at(schedule_.residencies, index);
  Stay& stay = at(stays_, index);
  if (!stay.awaited) {
    wait(stay.arrived, mesh::Transfer::gather, index);
    if (schedule_.unpacks(residency.unit)) unpack(residency);
  }
  stay.awaited = true;
  const Member& member = at(gathered_, id);
  entry.set_gathered(step_.arenas.gather.data() + (schedule_.unpacks(residency.unit)
                                                       ? residency.unpacked_offset + member.unpacked
                                                       : residency.offset + member.offset));
}

// Called when the packed bytes of a residency have arrived. Compute then writes the unpacked weights.
void Replay::unpack(const schedule::Residency& residency) {
  step_.arenas.gather_peak =
      std::max(step_.arenas.gather_peak, residency.unpacked_offset + at(schedule_.unpacked_bytes, residency.unit));
  std::byte* gathered = step_.arenas.gather.data() + residency.offset;
  std::byte* unpacked = step_.arenas.gather.data() + residency.unpacked_offset;
  for (const schedule::ParameterId id : at(schedule_.gather_units, residency.unit))
    entry(id).materializer.unpack(entry(id).parameter, gathered + at(gathered_, id).offset,
                                  unpacked + at(gathered_, id).unpacked, step_.parallel.kernels());
}

void Replay::arrive_columnwise(ParameterEntry& entry, schedule::ParameterId id) {
  const int residency = at(residency_of_, next_);
  std::byte* const gathered =
      residency < 0 ? nullptr : step_.arenas.gather.data() + at(schedule_.residencies, residency).offset;
  columnwise_.arrive(entry, id, next_, gathered);
}

std::byte* Replay::staging(schedule::ParameterId id) {
  const int index = at(reduction_of_, next_);
  TESSERA_CHECK(index >= 0, "event {}: '{}' has no staging in the schedule", next_, entry(id).name());
  return step_.arenas.reduce.data() + at(schedule_.reductions, index).offset + at(reduced_, id).offset;
}

void Replay::passed() {
  const int position = schedule_.position_of(next_++);
  const Actions& actions = at(actions_, slot(position));
  for (const auto& [offset, bytes] : actions.poison)
    step_.parallel.kernels().fill(step_.arenas.gather.data() + offset, quant::DType::u8, 0xFF, bytes);
  if (actions.fence) at(passed_, slot(position)) = step_.parallel.compute->record();
  for (const int i : actions.reductions) issue_reduction(i);
  for (const int i : actions.gathers) issue_gather(i);
  for (const int i : actions.finishes) wait(at(summed_, i), mesh::Transfer::reduce, i);
}

void Replay::note_versions(int index) {
  Stay& stay = at(stays_, index);
  stay.issued = true;
  stay.versions.clear();
  for (const schedule::ParameterId id : at(schedule_.gather_units, at(schedule_.residencies, index).unit))
    stay.versions.push_back(entry(id).parameter.version());
}

void Replay::issue_gather(int index) {
  const schedule::Residency& residency = at(schedule_.residencies, index);
  base::Lane& lane = gather_lane(index);
  const base::Fence& free = at(passed_, slot(residency.free));
  note_versions(index);
  for (const schedule::ParameterId id : at(schedule_.gather_units, residency.unit))
    lane.wait(entry(id).parameter.published());
  lane.wait(free);
  if (!is_ahead(index) || !step_.parallel.compute->is_captured()) return start_gather(index, free);
  for (comm::Communicator* group : step_.parallel.made(mesh::Transfer::gather_compute))
    lane.wait(group->lane().record());
  Stay& stay = at(stays_, index);
  stay.may_begin = lane.record(stay.beginning);
}

base::Lane& Replay::gather_lane(int index) {
  const schedule::Unit& unit = at(schedule_.gather_units, at(schedule_.residencies, index).unit);
  return step_.parallel.of(entry(unit.front()).domain(), mesh::Transfer::gather).lane();
}

// Records that the gather has arrived. A graph waits for the signal. Outside of a graph, compute waits for the fence of
// the collective, whose error is more specific than the error of the lane's fence.
void Replay::note_arrival(base::Lane& lane, Stay& stay) {
  if (step_.parallel.is_asynchronous()) stay.arrived = lane.record(stay.arrival);
}

void Replay::start_gather(int index, const base::Fence& free) {
  const schedule::Residency& residency = at(schedule_.residencies, index);
  const schedule::Unit& unit = at(schedule_.gather_units, residency.unit);
  Stay& stay = at(stays_, index);
  std::byte* buffer = step_.arenas.gather.data() + residency.offset;
  step_.arenas.gather_peak =
      std::max(step_.arenas.gather_peak, residency.offset + at(schedule_.gather_bytes, residency.unit));
  const int domain = entry(unit.front()).domain();
  comm::Communicator& storage = step_.parallel.of(domain, mesh::Transfer::gather);
  comm::Communicator* const compute = step_.parallel.has(domain, mesh::Transfer::gather_compute)
                                          ? &step_.parallel.of(domain, mesh::Transfer::gather_compute)
                                          : nullptr;
  for (const schedule::ParameterId id : unit)
    step_.statistics.count_gathered(entry(id).format, total_bytes(entry(id).ways.gather));
  delay(storage.lane());
  if (compute) delay(compute->lane());
  // After the body, gathers for the next step are issued.
  const shard::Recording recording =
      record(step_.timeline, trace_, static_cast<std::size_t>(residency.wait), unit, next_ > schedule_.body);
  if (unit.size() == 1) {
    const ParameterEntry& only = entry(unit.front());
    stay.arrived = only.materializer.start(only.parameter, {storage, compute}, buffer, free, recording);
    if (is_ahead(index)) note_arrival((only.materializer.has_last_hop() ? *compute : storage).lane(), stay);
    return;
  }
  std::int64_t bytes = 0;
  std::vector<comm::Movement> movements;
  for (const schedule::ParameterId id : unit) {
    const ParameterEntry& member = entry(id);
    member.materializer.add_first_hops(member.parameter, buffer + at(gathered_, id).offset, movements);
    bytes += total_bytes(member.ways.gather);
  }
  const base::LaneMark mark = recording.mark(mesh::Transfer::gather, bytes);
  mark.begin(storage.lane());
  stay.arrived = mark.end(storage.lane(), shard::run_all(storage, movements));
  if (is_ahead(index)) note_arrival(storage.lane(), stay);
}

void Replay::issue_reduction(int index) {
  const schedule::Reduction& reduction = at(schedule_.reductions, index);
  const std::int64_t bytes = at(schedule_.reduce_bytes, reduction.unit);
  std::byte* staging = step_.arenas.reduce.data() + reduction.offset;
  const schedule::Unit& unit = at(schedule_.reduce_units, reduction.unit);
  base::Lane& lane = step_.parallel.of(entry(unit.front()).domain(), mesh::Transfer::reduce).lane();
  for (const int earlier : reduction.scratch_waits) lane.wait(at(summed_, earlier));
  std::byte* scratch = step_.arenas.scratch.data() + reduction.scratch;
  step_.arenas.reduce_peak = std::max(step_.arenas.reduce_peak, reduction.offset + bytes);
  std::vector<shard::Reducing> members;
  for (const schedule::ParameterId id : unit) {
    ParameterEntry& member = entry(id);
    TESSERA_CHECK(member.is_produced(), "event {}: the gradient of '{}' is reduced before it is produced", next_ - 1,
                  member.name());
    members.push_back({&member.parameter, &member.reducer, staging + at(reduced_, id).offset, scratch});
    scratch += member.reducer.scratch_bytes();
    step_.statistics.reduced_bytes += total_bytes(member.ways.reduce);
    member.take_gradient();
  }
  delay(lane);
  if (step_.parallel.sums) delay(*step_.parallel.sums);
  std::span<std::byte> poisoned;
  if (step_.options.replay.poison) poisoned = {staging, static_cast<std::size_t>(bytes)};
  const shard::Recording recording = record(step_.timeline, trace_, static_cast<std::size_t>(reduction.issue), unit);
  const bool is_last = reduction.microbatch + 1 == schedule_.microbatches;
  at(summed_, index) = reduce(members, step_.parallel, is_last, recording, poisoned);
  if (reduction.replicas && is_last) issue_replicas(index);
}

void Replay::issue_replicas(int index) {
  const schedule::Reduction& reduction = at(schedule_.reductions, index);
  const schedule::Unit& unit = at(schedule_.reduce_units, reduction.unit);
  std::int64_t bytes = 0;
  for (const schedule::ParameterId id : unit) bytes += total_bytes(entry(id).ways.replicas);
  const base::LaneMark mark = record(step_.timeline, trace_, static_cast<std::size_t>(reduction.issue), unit)
                                  .mark(mesh::Transfer::replicas, bytes);
  std::vector<shard::ReplicaSum> members;
  for (const schedule::ParameterId id : unit) {
    entry(id).sum_replicas();
    members.push_back({&entry(id).parameter, &entry(id).replicas});
  }
  step_.statistics.reduced_bytes += bytes;
  replicas_.emplace_back(index, sum_over_replicas(members, step_.parallel, at(summed_, index), mark));
}

void Replay::repeat() {
  for (next_ = 0; next_ < schedule_.events; ++next_) {
    const schedule::Event& event = at(trace_, next_);
    if (event.kind == schedule::EventKind::publish) entry(event.parameter).parameter.make_version();
    if (event.kind == schedule::EventKind::consume && !entry(event.parameter).materializer.is_resident())
      residency_of_next(entry(event.parameter));
    if (event.kind == schedule::EventKind::consume && event.pass == schedule::Pass::backward &&
        entry(event.parameter).has_columnwise())
      columnwise_.repeat(entry(event.parameter), next_);
    for (const int i : at(actions_, slot(schedule_.position_of(next_))).gathers) note_versions(i);
    if (next_ + 1 == schedule_.body) clear_issued();
  }
}

void Replay::launched(const base::Fence& end) {
  for (auto& entry : step_.entries) entry->parameter.set_published({});  // may_begin comes after the publish event
  for (int i = 0; i < static_cast<int>(stays_.size()); ++i) {
    Stay& stay = at(stays_, i);
    if (!is_ahead(i)) {
      stay.arrived = end;
      continue;
    }
    for (const mesh::Transfer transfer : {mesh::Transfer::gather, mesh::Transfer::gather_compute})
      for (comm::Communicator* group : step_.parallel.made(transfer)) group->lane().wait(stay.may_begin);
    start_gather(i, {});
  }
  for (auto& entry : step_.entries) entry->parameter.set_published(end);
  std::ranges::fill(passed_, end);
  std::ranges::fill(summed_, end);
}

// Called at the end of a step. Gathers that are issued later are for the next step.
void Replay::clear_issued() {
  for (Stay& stay : stays_) stay.issued = false;
}

void Replay::finish() {
  for (int i = 0; i < static_cast<int>(schedule_.reductions.size()); ++i) {
    const schedule::Reduction& reduction = at(schedule_.reductions, i);
    if (reduction.replicas && reduction.microbatch + 1 < schedule_.microbatches) issue_replicas(i);
  }
  for (const auto& [index, summed] : replicas_) wait(summed, mesh::Transfer::replicas, index);
  replicas_.clear();
  clear_issued();
}

void Replay::drain() {
  for (std::size_t i = 0; i < stays_.size(); ++i)
    if (std::exchange(stays_[i].issued, false)) wait(stays_[i].arrived, mesh::Transfer::gather, static_cast<int>(i));
  for (std::size_t i = 0; i < summed_.size(); ++i) wait(summed_[i], mesh::Transfer::reduce, static_cast<int>(i));
  for (const auto& [index, summed] : replicas_) wait(summed, mesh::Transfer::replicas, index);
  replicas_.clear();
  std::ranges::fill(
      passed_,
      step_.parallel.compute->record());  // the next gathers must wait for work that reads the returned views
}

}  // namespace tessera::runtime
