#include "tessera/schedule/check/lanes.h"

#include <algorithm>
#include <ranges>
#include <string>

#include "tessera/schedule/check/shape.h"

namespace tessera::schedule {
namespace {

template <typename Item>
ItemsByEvent agenda_of(const std::vector<Item>& items, int Item::*event) {
  std::vector<int> due_at;
  for (const Item& item : items) due_at.push_back(item.*event);
  return ItemsByEvent(due_at);
}

}  // namespace

ItemsByEvent::ItemsByEvent(const std::vector<int>& due_at) {
  for (std::size_t item = 0; item < due_at.size(); ++item) items_.emplace_back(due_at[item], static_cast<int>(item));
  std::ranges::sort(items_);
}

int ItemsByEvent::next(int event) {
  return next_ < items_.size() && items_[next_].first <= event ? items_[next_++].second : -1;
}

CheckedLanes::CheckedLanes(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                           const std::vector<int>& taken, CheckFaults& faults)
    : trace_(trace), sizes_(sizes), schedule_(schedule), taken_(taken), faults_(faults) {
  fences_.resize(trace.size());
  waits_ = agenda_of(schedule.residencies, &Residency::wait);
  unpacked_ = agenda_of(schedule.residencies, &Residency::wait);
  ends_ = agenda_of(schedule.residencies, &Residency::last);
  copies_ = agenda_of(schedule.copies, &ColumnwiseCopy::make);
  copy_ends_ = agenda_of(schedule.copies, &ColumnwiseCopy::last);
  stagings_ = agenda_of(schedule.reductions, &Reduction::first);
  reductions_ = agenda_of(schedule.reductions, &Reduction::issue);
  finishes_ = agenda_of(schedule.reductions, &Reduction::finish);
  shards_.resize(sizes.size());
  shard_readers_.assign(sizes.size(), -1);
  main_grads_.resize(schedule.reduce_units.size());
  gather_unit_ = units_by_parameter(schedule.gather_units, sizes.size());
  gathered_.resize(schedule.residencies.size());
  current_.assign(schedule.gather_units.size(), -1);
  made_.resize(schedule.gather_units.size());
  for (int copy = 0; copy < static_cast<int>(schedule.copies.size()); ++copy)
    made_[static_cast<std::size_t>(schedule.copies[static_cast<std::size_t>(copy)].unit)].copy = copy;
  users_.assign(sizes.size(), 0);
  held_.assign(sizes.size(), -1);
  published_.assign(sizes.size(), 0);
  summed_.resize(schedule.reductions.size());
  finished_.resize(schedule.reductions.size());
}

void CheckedLanes::run_step(bool publishes) {
  begin_step();
  for (int index = 0; index < schedule_.body && !faults_.full(); ++index) {
    run_event(index);
    after_event(index);
  }
  end_body();
  ++step_;
  next_gather_ = 0;
  prefetched_ = publishes;
  for (int index = schedule_.body; publishes && index < schedule_.events && !faults_.full(); ++index) {
    run_event(index);
    after_event(index);
  }
}

void CheckedLanes::begin_step() {
  for (ItemsByEvent* agenda :
       {&waits_, &unpacked_, &ends_, &copies_, &copy_ends_, &stagings_, &reductions_, &finishes_})
    agenda->restart();
  std::ranges::fill(current_, -1);
  step_begin_ = on(kCompute).clock;
  issue_gathers(-1);
}

// Replays the work of compute before the event, and the event.
void CheckedLanes::run_event(int index) {
  const Event& event = trace_[static_cast<std::size_t>(index)];
  const bool in_body = index < schedule_.body;
  for (int residency = 0; in_body && (residency = waits_.next(index)) >= 0;) wait_for(residency, index);
  for (int copy = 0; in_body && (copy = copies_.next(index)) >= 0;) make_copy(copy, index);
  for (int reduction = 0; in_body && (reduction = stagings_.next(index)) >= 0;) {
    const Reduction& it = schedule_.reductions[static_cast<std::size_t>(reduction)];
    const std::int64_t bytes = schedule_.reduce_bytes[static_cast<std::size_t>(it.unit)];
    if (bytes == 0) continue;
    const auto conflict = reduce_arena_.write({it.offset, it.offset + bytes},
                                              tenant_of(reduction, schedule_.reductions.size()), on(kCompute));
    if (conflict)
      faults_.add("{}: its staging is written in segment {} while {} may be in use, expected that finish before",
                  faults_.reduction(reduction), index, reduce_tenant(*conflict));
  }
  if (event.kind == EventKind::consume) consume(index);
  if (event.kind == EventKind::release) release(index);
  if (event.kind == EventKind::produce) produce(index);
  if (event.kind == EventKind::publish) publish(index);
}

// Replays the operations that the host issues at the position of the event.
void CheckedLanes::after_event(int index) {
  const bool in_body = index < schedule_.body;
  for (int residency = 0; in_body && (residency = unpacked_.next(index)) >= 0;)
    if (unpacks(residency)) end_bytes(residency, /*packed=*/true);
  for (int residency = 0; in_body && (residency = ends_.next(index)) >= 0;) end_bytes(residency, /*packed=*/false);
  for (int copy = 0; in_body && (copy = copy_ends_.next(index)) >= 0;) end_copy(copy);
  fences_[static_cast<std::size_t>(index)] = on(kCompute).clock;
  for (int reduction = 0; in_body && (reduction = reductions_.next(index)) >= 0;) issue_reduction(reduction);
  issue_gathers(schedule_.position_of(index));
  for (int reduction = 0; in_body && (reduction = finishes_.next(index)) >= 0;) finish(reduction);
}

// Ends the interval of a residency's packed bytes, or of the bytes that compute used.
void CheckedLanes::end_bytes(int residency, bool packed) {
  const CheckedArena::Range range = packed ? arrived(residency) : used(residency);
  if (range.begin == range.end) return;
  const auto conflict =
      gather_arena_.write(range, gather_tenant_of(residency, !packed && unpacks(residency)), on(kCompute), true);
  if (conflict)
    faults_.add("{}: ends while the gather of {} may write its bytes", faults_.residency(residency),
                gather_tenant(*conflict));
}

// The optimizer reads every main_grad before the first publish event.
void CheckedLanes::end_body() {
  const ClockedAccess access = on(kCompute);
  for (std::size_t unit = 0; unit < main_grads_.size(); ++unit) {
    if (!main_grads_[unit].ready_to_read(access.clock))
      faults_.add("{}: its sums may be incomplete at the end of the body, expected a finish for each reduction",
                  faults_.unit(schedule_.reduce_units[unit]));
    main_grads_[unit].set_read(access);
  }
  for (std::size_t id = 0; id < users_.size(); ++id)
    if (users_[id] != 0)
      faults_.add("{}: consumed but not released in the body", faults_.parameter(static_cast<int>(id)));
}

void CheckedLanes::wait_for(int residency, int index) {
  const Residency& it = schedule_.residencies[static_cast<std::size_t>(residency)];
  const Gathered& gathered = gathered_[static_cast<std::size_t>(residency)];
  int& current = current_[static_cast<std::size_t>(it.unit)];
  if (gathered.tenant != gather_tenant_of(residency, false))
    faults_.add("{}: waited for at {} but not issued", faults_.residency(residency), faults_.event(index));
  if (current >= 0 && schedule_.residencies[static_cast<std::size_t>(current)].last >= index)
    faults_.add("{}: begins before the end of {}", faults_.residency(residency), faults_.residency(current));
  current = residency;
  join(clocks_[kCompute], gathered.done);
  if (unpacks(residency)) unpack(residency, index);
}

// Compute reads the gathered bytes, or the shards of weights that are not gathered, and writes the unpacked bytes.
void CheckedLanes::unpack(int residency, int index) {
  const ClockedAccess reads = on(kCompute);
  const Residency& it = schedule_.residencies[static_cast<std::size_t>(residency)];
  for (const ParameterId member : schedule_.gather_units[static_cast<std::size_t>(it.unit)])
    if (sizes_[static_cast<std::size_t>(member)].gathered == 0) read_shard(member, residency, reads);
  if (const CheckedArena::Range packed = arrived(residency); packed.begin < packed.end)
    if (const auto conflict = gather_arena_.read(packed, gather_tenant_of(residency, false), reads))
      faults_.add("{}: expected its packed bytes where they are unpacked, before {}, got {}{}",
                  faults_.residency(residency), faults_.event(index), gather_tenant(*conflict),
                  conflict->unordered ? ", which may be in flight" : "");
  const ClockedAccess writes = on(kCompute);
  if (const auto conflict = gather_arena_.write(used(residency), gather_tenant_of(residency, true), writes))
    faults_.add("{}: its unpacked bytes are written before {} while the gather of {} may write the same bytes",
                faults_.residency(residency), faults_.event(index), gather_tenant(*conflict));
}

// Compute reads the gathered bytes of the unit, or the shards of weights that stay in place, and writes the copies.
void CheckedLanes::make_copy(int copy, int index) {
  const ColumnwiseCopy& it = schedule_.copies[static_cast<std::size_t>(copy)];
  const auto unit = static_cast<std::size_t>(it.unit);
  const int residency = current_[unit];
  const bool in_place = schedule_.stays_in_place(it.unit);
  if (!in_place && residency < 0)
    return faults_.add("{}: expected the weights of its unit before {}, got none", faults_.copy(copy),
                       faults_.event(index));
  for (const ParameterId member : schedule_.gather_units[unit])
    if (const auto id = static_cast<std::size_t>(member);
        !in_place && gathered_[static_cast<std::size_t>(residency)].publishes < published_[id])
      faults_.add("{}: its weight {} was gathered before its last publish event, in {}, expected the newest version",
                  faults_.copy(copy), faults_.parameter(member), faults_.residency(residency));
  if (!in_place)
    if (const auto conflict = gather_arena_.read(arrived(residency), gather_tenant_of(residency, false), on(kCompute)))
      faults_.add("{}: expected the weights of {} before {}, got {}{}", faults_.copy(copy),
                  faults_.residency(residency), faults_.event(index), gather_tenant(*conflict),
                  conflict->unordered ? ", which may be in flight" : "");
  if (const auto conflict = gather_arena_.write(range_of(it), copy_tenant_of(copy), on(kCompute)))
    faults_.add("{}: is written before {} while the gather of {} may write the same bytes", faults_.copy(copy),
                faults_.event(index), gather_tenant(*conflict));
  made_[unit] = {.copy = copy, .step = step_, .publishes = publishes_};
}

void CheckedLanes::end_copy(int copy) {
  const ColumnwiseCopy& it = schedule_.copies[static_cast<std::size_t>(copy)];
  if (const auto conflict = gather_arena_.write(range_of(it), copy_tenant_of(copy), on(kCompute), true))
    faults_.add("{}: ends while the gather of {} may write its bytes", faults_.copy(copy), gather_tenant(*conflict));
}

// A consume or release event of a backward pass reads the columnwise copy of its weight.
void CheckedLanes::read_copy(int index) {
  const Event& event = trace_[static_cast<std::size_t>(index)];
  const auto id = static_cast<std::size_t>(event.parameter);
  if (event.pass != Pass::backward || sizes_[id].columnwise == 0) return;
  const int unit = gather_unit_[id];
  const Made made = unit == kNoUnit ? Made{} : made_[static_cast<std::size_t>(unit)];
  if (made.copy < 0)
    return faults_.add("{}: expected a columnwise copy of its weight, got a schedule without copies",
                       faults_.event(index));
  const std::string name = faults_.copy(made.copy);
  if (made.publishes < published_[id])
    return faults_.add(
        "{}: reads {}, which was made before the last publish event of the weight, expected a copy of "
        "the newest version",
        faults_.event(index), name);
  const ColumnwiseCopy& it = schedule_.copies[static_cast<std::size_t>(made.copy)];
  if (made.step != step_ || it.last < index)
    return faults_.add("{}: expected a position inside a columnwise copy of its unit, got {}", faults_.event(index),
                       name);
  if (const auto conflict = gather_arena_.read(range_of(it), copy_tenant_of(made.copy), on(kCompute)))
    faults_.add("{}: expected {}, got {} in its bytes", faults_.event(index), name, gather_tenant(*conflict));
}

void CheckedLanes::consume(int index) {
  const auto id = static_cast<std::size_t>(trace_[static_cast<std::size_t>(index)].parameter);
  if (sizes_[id].gathered == 0 && sizes_[id].unpacked == 0) {
    ++users_[id];
    return read_copy(index);
  }
  const int unit = gather_unit_[id];
  const int current = unit == kNoUnit ? -1 : current_[static_cast<std::size_t>(unit)];
  if (users_[id]++ == 0) held_[id] = current;
  if (current < 0 || schedule_.residencies[static_cast<std::size_t>(current)].last < index)
    return faults_.add("{}: expected a position inside a residency of its unit, got none", faults_.event(index));
  const Gathered& gathered = gathered_[static_cast<std::size_t>(current)];
  if (gathered.publishes < published_[id])
    faults_.add("{}: its weight was gathered before its last publish event, in {}, expected the newest version",
                faults_.event(index), faults_.residency(current));
  read_weights(current, index);
  read_copy(index);
}

void CheckedLanes::release(int index) {
  const auto id = static_cast<std::size_t>(trace_[static_cast<std::size_t>(index)].parameter);
  if (users_[id] == 0) return faults_.add("{}: released but not consumed", faults_.event(index));
  if (held_[id] >= 0) read_weights(held_[id], index);
  read_copy(index);
  if (--users_[id] == 0) held_[id] = -1;
}

void CheckedLanes::read_weights(int residency, int index) {
  const CheckedArena::Range range = used(residency);
  if (range.begin == range.end) return;
  const auto conflict = gather_arena_.read(range, gather_tenant_of(residency, unpacks(residency)), on(kCompute));
  if (!conflict) return;
  if (conflict->unordered)
    faults_.add("{}: may run before the gather of {} is complete", faults_.event(index), gather_tenant(*conflict));
  else
    faults_.add("{}: expected the weights of {}, got {} in its bytes", faults_.event(index),
                faults_.residency(residency), gather_tenant(*conflict));
}

void CheckedLanes::produce(int index) {
  const int reduction = taken_[static_cast<std::size_t>(index)];
  if (reduction < 0) return;  // the gradient has no staging; compute writes it to main_grad and reads it there
  const Reduction& it = schedule_.reductions[static_cast<std::size_t>(reduction)];
  const std::int64_t bytes = schedule_.reduce_bytes[static_cast<std::size_t>(it.unit)];
  if (bytes == 0) return;
  const int tenant = tenant_of(reduction, schedule_.reductions.size());
  const CheckedArena::Range range{it.offset, it.offset + bytes};
  if (const auto conflict = reduce_arena_.read(range, tenant, on(kCompute)))
    faults_.add("{}: expected the staging of {}, got {} in its bytes", faults_.event(index),
                faults_.reduction(reduction), reduce_tenant(*conflict));
  reduce_arena_.write(range, tenant, on(kCompute));
}

// The optimizer writes the shard in the segment before the publish event.
void CheckedLanes::publish(int index) {
  const auto id = static_cast<std::size_t>(trace_[static_cast<std::size_t>(index)].parameter);
  const ClockedAccess access = on(kCompute);
  if (users_[id] != 0) faults_.add("{}: published while it is consumed", faults_.event(index));
  if (!shards_[id].ready_to_write(access.clock))
    faults_.add("{}: the optimizer writes the shard while {} may be reading it", faults_.event(index),
                faults_.residency(shard_readers_[id]));
  shards_[id].set_write(access);
  published_[id] = ++publishes_;
}

void CheckedLanes::issue_gathers(int position) {
  for (; next_gather_ < schedule_.residencies.size(); ++next_gather_) {
    const auto index = static_cast<int>(next_gather_);
    const Residency& it = schedule_.residencies[next_gather_];
    if (it.issue > position) return;
    const auto unit = static_cast<std::size_t>(it.unit);
    const CheckedLane lane = lane_of(DomainLane::gather, schedule_.gather_domains[unit]);
    join(clocks_[lane], fence(it.free));
    const ClockedAccess access = on(lane);
    for (const ParameterId member : schedule_.gather_units[unit])
      if (const ParameterSize& size = sizes_[static_cast<std::size_t>(member)]; size.gathered > 0 || size.unpacked == 0)
        read_shard(member, index, access);
    const int tenant = gather_tenant_of(index, false);
    if (const CheckedArena::Range range = arrived(index); range.begin < range.end)
      if (const auto conflict = gather_arena_.write(range, tenant, access))
        faults_.add(
            "{}: its gather may overwrite {} while compute may still use it, expected free at or after its last "
            "release",
            faults_.residency(index), gather_tenant(*conflict));
    gathered_[next_gather_] = {tenant, publishes_, access.clock};
  }
}

void CheckedLanes::read_shard(ParameterId id, int residency, const ClockedAccess& access) {
  AccessHistory& shard = shards_[static_cast<std::size_t>(id)];
  if (!shard.ready_to_read(access.clock))
    faults_.add("{}: may read the shard of {} before its publish event is done, expected free at or after that event",
                faults_.residency(residency), faults_.parameter(id));
  shard.set_read(access);
  shard_readers_[static_cast<std::size_t>(id)] = residency;
}

bool CheckedLanes::unpacks(int residency) const {
  return schedule_.unpacks(schedule_.residencies[static_cast<std::size_t>(residency)].unit);
}

CheckedArena::Range CheckedLanes::arrived(int residency) const {
  const Residency& it = schedule_.residencies[static_cast<std::size_t>(residency)];
  return {it.offset, it.offset + schedule_.gather_bytes[static_cast<std::size_t>(it.unit)]};
}

CheckedArena::Range CheckedLanes::used(int residency) const {
  if (!unpacks(residency)) return arrived(residency);
  const Residency& it = schedule_.residencies[static_cast<std::size_t>(residency)];
  return {it.unpacked_offset, it.unpacked_offset + schedule_.unpacked_bytes[static_cast<std::size_t>(it.unit)]};
}

void CheckedLanes::issue_reduction(int reduction) {
  const Reduction& it = schedule_.reductions[static_cast<std::size_t>(reduction)];
  const auto unit = static_cast<std::size_t>(it.unit);
  const int domain = schedule_.reduce_domains[unit];
  const CheckedLane exchange = lane_of(DomainLane::exchange, domain), sum = lane_of(DomainLane::sum, domain);
  join(clocks_[exchange], fence(it.issue));
  for (const int earlier : it.scratch_waits) join(clocks_[exchange], summed_[static_cast<std::size_t>(earlier)]);
  const ClockedAccess exchanges = on(exchange);
  take_scratch(reduction, exchanges);
  join(clocks_[sum], exchanges.clock);
  const ClockedAccess sums = on(sum);
  read_staging(reduction, exchanges);
  read_staging(reduction, sums);
  read_scratch(reduction, sums);
  AccessHistory& main_grad = main_grads_[unit];
  if (!main_grad.ready_to_write(sums.clock))
    faults_.add("{}: adds to main_grad while it may be in use", faults_.reduction(reduction));
  main_grad.set_write(sums);
  summed_[static_cast<std::size_t>(reduction)] = finished_[static_cast<std::size_t>(reduction)] = sums.clock;
  if (!it.replicas) return;
  const CheckedLane replicas = lane_of(DomainLane::replicas, domain);
  join(clocks_[replicas], sums.clock);
  const ClockedAccess over_replicas = on(replicas);
  main_grad.set_write(over_replicas);
  finished_[static_cast<std::size_t>(reduction)] = over_replicas.clock;
}

void CheckedLanes::read_staging(int reduction, const ClockedAccess& access) {
  const Reduction& it = schedule_.reductions[static_cast<std::size_t>(reduction)];
  const std::int64_t bytes = schedule_.reduce_bytes[static_cast<std::size_t>(it.unit)];
  if (bytes == 0) return;
  const int tenant = tenant_of(reduction, schedule_.reductions.size());
  if (const auto conflict = reduce_arena_.read({it.offset, it.offset + bytes}, tenant, access))
    faults_.add("{}: expected its staging, got {} in its bytes", faults_.reduction(reduction),
                reduce_tenant(*conflict));
}

// The exchange writes the received parts to the scratch.
void CheckedLanes::take_scratch(int reduction, const ClockedAccess& access) {
  const Reduction& it = schedule_.reductions[static_cast<std::size_t>(reduction)];
  const std::int64_t bytes = schedule_.scratch_bytes[static_cast<std::size_t>(it.unit)];
  if (bytes == 0) return;
  const int tenant = tenant_of(reduction, schedule_.reductions.size());
  if (const auto conflict = scratch_.write({it.scratch, it.scratch + bytes}, tenant, access))
    faults_.add(
        "{}: its exchange may write the scratch of {} before these bytes are summed, expected a wait for the sum",
        faults_.reduction(reduction), reduce_tenant(*conflict));
}

void CheckedLanes::read_scratch(int reduction, const ClockedAccess& access) {
  const Reduction& it = schedule_.reductions[static_cast<std::size_t>(reduction)];
  const std::int64_t bytes = schedule_.scratch_bytes[static_cast<std::size_t>(it.unit)];
  if (bytes == 0) return;
  const int tenant = tenant_of(reduction, schedule_.reductions.size());
  if (const auto conflict = scratch_.read({it.scratch, it.scratch + bytes}, tenant, access))
    faults_.add("{}: expected the received parts in the scratch, got {}", faults_.reduction(reduction),
                reduce_tenant(*conflict));
}

void CheckedLanes::finish(int reduction) {
  const Reduction& it = schedule_.reductions[static_cast<std::size_t>(reduction)];
  const std::int64_t bytes = schedule_.reduce_bytes[static_cast<std::size_t>(it.unit)];
  join(clocks_[kCompute], finished_[static_cast<std::size_t>(reduction)]);
  if (bytes == 0) return;
  const auto conflict = reduce_arena_.write({it.offset, it.offset + bytes},
                                            tenant_of(reduction, schedule_.reductions.size()), on(kCompute), true);
  if (conflict)
    faults_.add("{}: ends while {} may be in use in its bytes", faults_.reduction(reduction), reduce_tenant(*conflict));
}

// Starts the next operation of a lane and returns the clock of the operation.
ClockedAccess CheckedLanes::on(CheckedLane lane) {
  VectorClock& clock = clocks_[lane];
  ++clock[lane];
  return {lane, clock};
}

const VectorClock& CheckedLanes::fence(int position) const {
  if (position >= 0) return fences_[static_cast<std::size_t>(position)];
  if (!prefetched_ || schedule_.optimizer_events() == 0) return step_begin_;
  return fences_[static_cast<std::size_t>(schedule_.events) - static_cast<std::size_t>(-position)];
}

std::string CheckedLanes::gather_tenant(const CheckedArena::Conflict& conflict) const {
  if (conflict.tenant == kNoTenant) return "nothing";
  const std::string end = conflict.ended ? "the end of " : "";
  const int of_step = conflict.tenant % static_cast<int>(gather_tenants());
  const int copy = of_step - 2 * static_cast<int>(schedule_.residencies.size());
  if (copy >= 0) return end + faults_.copy(copy);
  const char* stage = !unpacks(of_step / 2) ? "" : of_step % 2 == 0 ? "the packed bytes of " : "the unpacked bytes of ";
  return end + stage + faults_.residency(of_step / 2);
}

std::string CheckedLanes::reduce_tenant(const CheckedArena::Conflict& conflict) const {
  if (conflict.tenant == kNoTenant) return "nothing";
  return (conflict.ended ? "the end of " : "") +
         faults_.reduction(conflict.tenant % static_cast<int>(schedule_.reductions.size()));
}

}  // namespace tessera::schedule
