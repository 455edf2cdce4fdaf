// A recorded step becomes a schedule (docs/schedule.md).
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/runtime/runtime.h"
#include "tessera/schedule/check/check.h"
#include "tessera/schedule/check/check_mesh.h"

namespace tessera::runtime {

// By what was recorded.
bool Runtime::is_worth_planning() {
  const bool trains = std::ranges::any_of(entries_, [](const auto& e) { return e->parameter.spec.trainable; });
  const bool published =
      std::ranges::any_of(trace(), [](const schedule::Event& e) { return e.kind == schedule::EventKind::publish; });
  if (is_training() && trains && !published) return false;  // the optimizer skipped it: its trace is no whole step
  // A GPU's first step loads what it calls, and its ranks connect: no times to choose budgets by.
  const bool chooses = !options_.gather_budget || !options_.reduce_budget;
  return std::exchange(is_warm_, true) || !parallel_.is_asynchronous() || !chooses;
}

// For arenas: what a GPU has free beside activations, which their allocator has kept from the recorded step, less some
// for what libraries take later.
std::int64_t Runtime::room() const {
  if (!parallel_.is_asynchronous()) return schedule::kUnlimited;
  const base::DeviceMemory memory = base::memory_of(parallel_.device);
  const std::size_t arenas = arenas_.gather.size() + arenas_.reduce.size() + arenas_.scratch.size();
  return std::max<std::int64_t>(0, memory.free + static_cast<std::int64_t>(arenas) - memory.total / 20);
}

// By itself, and together with those of the other ranks: empty where it is right. An evaluation has no collective with
// ranks of another class, which may have as many of them as they like.
std::vector<std::string> Runtime::prove(const std::vector<schedule::ParameterSize>& sizes,
                                        const schedule::Schedule& schedule) {
  const schedule::RoleGroups groups = role_groups(parallel_.mesh, parallel_.domains);
  if (!parallel_.has_classes()) return check_mesh(groups, parallel_.world->size(), trace(), sizes, schedule);
  std::vector<std::string> faults = check(trace(), sizes, schedule);
  if (!faults.empty()) return faults;
  schedule::CallOrder own = call_order(trace(), sizes, schedule);
  if (is_training())
    return schedule::check_together(
        schedule::rank_orders(groups, agreement_.orders_of_classes(own, entries_), parallel_.class_of));
  std::vector<int> class_of = parallel_.class_of;  // the others do nothing
  const int own_class = class_of[static_cast<std::size_t>(parallel_.rank)];
  for (int& its_class : class_of) its_class = its_class == own_class ? 0 : 1;
  return schedule::check_together(schedule::rank_orders(groups, {std::move(own), {}}, class_of));
}

void Runtime::make_schedule() {
  if (prepared_) prepared_->drain();
  prepared_ = nullptr;
  const std::vector<schedule::ParameterSize> sizes = this->sizes();
  agreement_.compare(*parallel_.alike, agreement_.hash(), "the optimizer's part of a step", entries_);
  on_demand_.free_unused();
  const schedule::BudgetChoice choice{.gather = options_.gather_budget,
                                      .reduce = options_.reduce_budget,
                                      .coalesce_bytes = options_.coalesce_bytes,
                                      .room = measure_.agree(trace(), entries_.size(), room(), agreement_, entries_)};
  schedule::Schedule schedule = plan_within(
      trace(), sizes, choice, [&](const schedule::Schedule& tried) { return measure_.costs(trace(), tried, sizes); });
  const std::vector<std::string> faults = prove(sizes, schedule);
  TESSERA_CHECK(faults.empty(), "the schedule of a {} step is wrong: {}", name_of(numbers_.kind()), faults.front());
  const std::uint64_t gathers = gather_hash(schedule), reductions = reduce_hash(schedule);
  for (const shard::Via via : {shard::Via::gather, shard::Via::gather_compute})
    for (comm::Communicator* group : parallel_.made(via))
      agreement_.compare(*group, gathers, "the schedule of the gathers", entries_);
  for (const shard::Via via : {shard::Via::reduce, shard::Via::reduce_compute, shard::Via::replicas})
    for (comm::Communicator* group : parallel_.made(via))
      if (via != shard::Via::replicas || !parallel_.has_classes())  // else proved together
        agreement_.compare(*group, reductions, "the schedule of the reductions", entries_);
  totals_.indirect = arenas_.grow(schedule, parallel_, options_.pushes);
  StepReplay& step_replay = step_replays_[{numbers_.kind(), microbatches_}];
  step_replay.departures = 0;
  step_replay.replay = std::make_unique<Replay>(trace(), std::move(schedule), entries_, parallel_, arenas_, waits_,
                                                statistics_, timeline_, options_.replay);
  ++totals_.planned;
}

}  // namespace tessera::runtime
