#include "tests/schedule/oracle_cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace tessera::schedule::oracle {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

int between(int low, int high, std::mt19937_64& random) {
  return low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
}

Case two_layers() {
  Recorder step("two layers, two microbatches", {{"a", 2, 2}, {"b", 3, 1}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    step.use(0, Pass::forward), step.use(1, Pass::forward);
    step.backward(1), step.backward(0);
  }
  step.publish(0), step.publish(1);
  return step.take();
}

Case tied_embedding() {
  Recorder step("a tied embedding, produced twice", {{"embedding", 3, 3}, {"w", 2, 2}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    step.use(0, Pass::forward), step.use(1, Pass::forward), step.use(0, Pass::forward);
    step.backward(0), step.backward(1), step.backward(0);
  }
  step.publish(0), step.publish(1);
  return step.take();
}

Case layer_twice() {
  Recorder step("a layer used twice, the uses nested", {{"shared", 2, 2}, {"w", 2, 1}});
  step.microbatch();
  step.consume(0, Pass::forward), step.consume(0, Pass::forward);
  step.release(0, Pass::forward), step.release(0, Pass::forward);
  step.use(1, Pass::forward), step.use(0, Pass::forward);
  step.backward(0), step.backward(1), step.backward(0);
  step.publish(1), step.publish(0);
  return step.take();
}

Case frozen() {
  Recorder step("a frozen weight", {{"frozen", 2, 0}, {"w", 2, 2}, {"norm", 0, 1}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    for (int parameter = 0; parameter < 3; ++parameter) step.use(parameter, Pass::forward);
    for (int parameter = 2; parameter >= 0; --parameter) step.backward(parameter);
  }
  step.publish(1), step.publish(2);
  return step.take();
}

Case recompute() {
  Recorder step("recompute inside backward", {{"a", 2, 1}, {"b", 2, 1}, {"c", 1, 1}});
  step.microbatch();
  for (int parameter = 0; parameter < 3; ++parameter) step.use(parameter, Pass::forward);
  step.backward(2);
  step.use(0, Pass::recompute), step.use(1, Pass::recompute);
  step.backward(1), step.backward(0);
  step.publish(0), step.publish(1), step.publish(2);
  return step.take();
}

Case coalesced() {
  Recorder step("neighbours in one unit, published apart", {{"a", 1, 1}, {"b", 1, 2}, {"c", 2, 1}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    for (int parameter = 0; parameter < 3; ++parameter) step.use(parameter, Pass::forward);
    for (int parameter = 2; parameter >= 0; --parameter) step.backward(parameter);
  }
  step.publish(0), step.publish(2), step.publish(1);
  return step.take({{0, 1}, {2}});
}

Case delayed_gradients() {
  Recorder step("weight gradients after the backward", {{"a", 2, 2}, {"b", 2, 2}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    step.use(0, Pass::forward), step.use(1, Pass::forward);
    step.use(1, Pass::backward), step.use(0, Pass::backward);
    step.produce(1), step.produce(0);
  }
  step.publish(1), step.publish(0);
  return step.take();
}

Case buckets() {
  Recorder step("amaxes before the publish events of a bucket", {{"a", 2, 2}, {"b", 3, 1}, {"c", 1, 1}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    for (int parameter = 0; parameter < 3; ++parameter) step.use(parameter, Pass::forward);
    for (int parameter = 2; parameter >= 0; --parameter) step.backward(parameter);
  }
  step.amaxes(2), step.publish(0), step.publish(1);
  step.amaxes(1), step.publish(2);
  return step.take();
}

// Beside one that is used as it arrives.
Case unpacked_weights() {
  Recorder step("weights that are unpacked", {{"a", 1, 1, 3}, {"b", 2, 1}, {"c", 2, 1, 2}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    step.consume(0, Pass::forward), step.use(1, Pass::forward), step.release(0, Pass::forward);
    step.use(2, Pass::forward);
    for (int parameter = 2; parameter >= 0; --parameter) step.backward(parameter);
  }
  step.amaxes(2), step.publish(0), step.publish(1), step.publish(2);
  return step.take();
}

// Two members of one unit, unpacked to their own places, and a weight that is stored whole on every rank.
Case unpacked_together() {
  Recorder step("weights that are unpacked, two of them together and one that is not gathered",
                {{"a", 1, 1, 2}, {"b", 2, 1, 1}, {"stored", 0, 1, 2}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    for (int parameter = 0; parameter < 3; ++parameter) step.use(parameter, Pass::forward);
    for (int parameter = 2; parameter >= 0; --parameter) step.backward(parameter);
  }
  step.publish(2), step.publish(1), step.publish(0);
  return step.take({{0, 1}, {2}});
}

// Columnwise copies of gathered weights and of one that stays in place, beside a weight without copies. A weight is
// used by the backward passes of two uses at once.
Case columnwise() {
  Recorder step("columnwise copies", {{"a", 1, 1, 0, 2}, {"b", 2, 1}, {"stored", 0, 1, 0, 2}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    for (int parameter = 0; parameter < 3; ++parameter) step.use(parameter, Pass::forward);
    step.backward(2), step.backward(1), step.use(0, Pass::recompute);
    step.consume(0, Pass::backward), step.backward(0), step.release(0, Pass::backward);
  }
  step.publish(0), step.publish(1), step.publish(2);
  return step.take();
}

// Two members of one unit, with a gradient that is produced after the copies are no longer used.
Case columnwise_together() {
  Recorder step("columnwise copies of two weights together", {{"a", 1, 1, 0, 1}, {"b", 1, 1, 0, 2}, {"c", 3, 1}});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    for (int parameter = 0; parameter < 3; ++parameter) step.use(parameter, Pass::forward);
    step.backward(2), step.use(1, Pass::backward), step.use(0, Pass::backward);
    step.produce(1), step.produce(0);
  }
  step.publish(1), step.publish(0), step.publish(2);
  return step.take({{0, 1}, {2}});
}

Case evaluation() {
  Recorder step("an evaluation", {{"a", 2, 2}, {"b", 3, 1}}, StepKind::evaluate);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    step.microbatch();
    step.use(0, Pass::forward), step.use(1, Pass::forward), step.use(0, Pass::forward);
  }
  return step.take();
}

// An interval of events in which a unit is in use, or in use by backward passes.
struct Use {
  int unit = 0, first = 0, last = 0;
};

std::vector<Use> uses_of(const Case& made, bool backward = false) {
  std::vector<int> users(made.gather_units.size(), 0), open(made.gather_units.size(), -1);
  std::vector<Use> uses;
  for (int index = 0; index < static_cast<int>(made.trace.size()); ++index) {
    const Event& event = made.trace[at(index)];
    if (backward && event.pass != Pass::backward) continue;
    for (int unit = 0; unit < static_cast<int>(made.gather_units.size()); ++unit) {
      if (std::ranges::find(made.gather_units[at(unit)], event.parameter) == made.gather_units[at(unit)].end())
        continue;
      if (event.kind == EventKind::consume && users[at(unit)]++ == 0) {
        open[at(unit)] = static_cast<int>(uses.size());
        uses.push_back({unit, index, index});
      }
      if (event.kind == EventKind::release && --users[at(unit)] == 0) uses[at(open[at(unit)])].last = index;
    }
  }
  return uses;
}

bool overlap(std::int64_t a, std::int64_t a_bytes, std::int64_t b, std::int64_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

// Bytes of the gather arena that one residency occupies until the event `last`.
struct Stretch {
  std::int64_t offset = 0, bytes = 0;
  int last = 0;
};

// Returns the bytes that the gather writes, then the bytes of the unpacked weights.
std::array<Stretch, 2> stretches_of(const Schedule& schedule, const Residency& it) {
  const bool unpacks = schedule.unpacks(it.unit);
  return {{{it.offset, schedule.gather_bytes[at(it.unit)], unpacks ? it.wait : it.last},
           {it.unpacked_offset, schedule.unpacked_bytes[at(it.unit)], it.last}}};
}

// Places the columnwise copies of each backward use, or keeps the copies of the unit's last use. The offsets do not
// overlap with weights or with other copies that are in use.
void place_copies(const Case& made, Schedule& schedule, std::mt19937_64& random) {
  std::vector<ColumnwiseCopy> placed;
  std::map<int, std::size_t> newest;  // key: unit
  const auto in_use = [&](const ColumnwiseCopy& next) {
    const std::int64_t bytes = schedule.columnwise_bytes[at(next.unit)];
    const bool by_weights = std::ranges::any_of(schedule.residencies, [&](const Residency& other) {
      const auto [gathered, unpacked] = stretches_of(schedule, other);
      return (overlap(next.offset, bytes, gathered.offset, gathered.bytes) && other.free < next.last &&
              gathered.last >= next.make) ||
             (overlap(next.offset, bytes, unpacked.offset, unpacked.bytes) && other.wait <= next.last &&
              unpacked.last >= next.make);
    });
    return by_weights || std::ranges::any_of(placed, [&](const ColumnwiseCopy& other) {
             return overlap(next.offset, bytes, other.offset, schedule.columnwise_bytes[at(other.unit)]) &&
                    other.last >= next.make && other.make <= next.last;
           });
  };
  for (const Use& use : uses_of(made, /*backward=*/true)) {
    if (schedule.columnwise_bytes[at(use.unit)] == 0) continue;
    const auto holds = [&](const Residency& it) {
      return it.unit == use.unit && it.wait <= use.first && use.last <= it.last;
    };
    if (const auto old = newest.find(use.unit); old != newest.end() && random() % 2 == 0) {
      ColumnwiseCopy kept = placed[old->second];
      placed.erase(placed.begin() + static_cast<std::ptrdiff_t>(old->second));
      const ColumnwiseCopy before = std::exchange(kept, {kept.unit, kept.make, use.last, kept.offset});
      const bool in_one_residency =
          schedule.stays_in_place(use.unit) || std::ranges::any_of(schedule.residencies, [&](const Residency& it) {
            return holds(it) && it.wait <= kept.make;
          });
      const bool keeps = in_one_residency && !in_use(kept);
      placed.insert(placed.begin() + static_cast<std::ptrdiff_t>(old->second), keeps ? kept : before);
      if (keeps) continue;
    }
    ColumnwiseCopy next{.unit = use.unit, .make = use.first, .last = use.last, .offset = between(0, 5, random)};
    while (in_use(next)) ++next.offset;
    newest[use.unit] = placed.size();
    placed.push_back(next);
    schedule.gather_arena = std::max(schedule.gather_arena, next.offset + schedule.columnwise_bytes[at(next.unit)]);
  }
  schedule.copies = std::move(placed);
}

// Returns the last event at which one of `placed` occupies a byte of the stretch. Returns a position before all events
// if they do not overlap.
int in_use_until(const Schedule& schedule, std::span<const Residency> placed, const Stretch& stretch) {
  int last = std::numeric_limits<int>::min();
  for (const Residency& other : placed)
    for (const Stretch& theirs : stretches_of(schedule, other))
      if (overlap(stretch.offset, stretch.bytes, theirs.offset, theirs.bytes)) last = std::max(last, theirs.last);
  return last;
}

void place_gathers(const Case& made, Schedule& schedule, std::mt19937_64& random) {
  std::vector<Residency> placed;
  std::map<int, std::size_t> newest;  // key: unit
  for (const Use& use : uses_of(made)) {
    if (schedule.stays_in_place(use.unit)) continue;
    if (const auto old = newest.find(use.unit); old != newest.end()) {
      // With probability 1/2, the unit keeps its bytes if no other unit has taken them.
      const Stretch kept = stretches_of(schedule, placed[old->second])[schedule.unpacks(use.unit) ? 1 : 0];
      const int taken = in_use_until(schedule, std::span(placed).subspan(old->second + 1), kept);
      if (taken == std::numeric_limits<int>::min() && random() % 2 == 0) {
        placed[old->second].last = use.last;
        continue;
      }
    }
    Residency next{.unit = use.unit, .wait = use.first, .last = use.last};
    next.offset = between(0, 5, random);
    next.unpacked_offset = between(0, 5, random);
    const auto [gathered, unpacked] = stretches_of(schedule, next);
    while (in_use_until(schedule, placed, stretches_of(schedule, next)[0]) >= use.first) ++next.offset;
    while (in_use_until(schedule, placed, stretches_of(schedule, next)[1]) >= use.first ||
           overlap(next.offset, gathered.bytes, next.unpacked_offset, unpacked.bytes))
      ++next.unpacked_offset;
    next.free = std::min(-1, -schedule.optimizer_events());
    for (int index = schedule.body; index < schedule.events; ++index)
      if (std::ranges::count(made.gather_units[at(use.unit)], made.trace[at(index)].parameter))
        next.free = std::max(next.free, schedule.position_of(index));
    next.free = std::max(next.free, in_use_until(schedule, placed, stretches_of(schedule, next)[0]));
    const int earliest = placed.empty() ? next.free : std::max(next.free, placed.back().issue);
    next.issue = between(earliest, random() % 2 ? earliest : next.wait - 1, random);
    newest[use.unit] = placed.size();
    placed.push_back(next);
  }
  for (const Residency& it : placed)
    for (const Stretch& stretch : stretches_of(schedule, it))
      schedule.gather_arena = std::max(schedule.gather_arena, stretch.offset + stretch.bytes);
  schedule.residencies = std::move(placed);
}

void place_reductions(const Case& made, Schedule& schedule, std::mt19937_64& random) {
  std::map<std::pair<int, int>, Reduction> by_unit;  // key: unit and microbatch
  for (int index = 0; index < schedule.body; ++index) {
    const Event& event = made.trace[at(index)];
    if (event.kind != EventKind::produce) continue;
    for (int unit = 0; unit < static_cast<int>(made.reduce_units.size()); ++unit) {
      if (!std::ranges::count(made.reduce_units[at(unit)], event.parameter)) continue;
      const Reduction fresh{.unit = unit, .microbatch = event.microbatch, .first = index};
      by_unit.try_emplace({unit, event.microbatch}, fresh).first->second.issue = index;
    }
  }
  std::vector<Reduction> placed;
  for (const auto& [key, reduction] : by_unit) placed.push_back(reduction);
  std::ranges::sort(placed, {}, &Reduction::first);
  for (std::size_t i = 0; i < placed.size(); ++i) {
    Reduction& next = placed[i];
    const std::int64_t bytes = schedule.reduce_bytes[at(next.unit)];
    next.finish = between(next.issue, schedule.body - 1, random);
    next.offset = between(0, 3, random);
    auto in_the_way = [&](const Reduction& other) {
      return overlap(next.offset, bytes, other.offset, schedule.reduce_bytes[at(other.unit)]);
    };
    const auto earlier = std::span(placed).first(i);
    while (std::ranges::any_of(earlier, [&](const Reduction& o) { return in_the_way(o) && o.issue >= next.first; }))
      ++next.offset;
    for (Reduction& other : earlier)
      if (in_the_way(other)) other.finish = std::min(other.finish, next.first - 1);
    schedule.reduce_arena = std::max(schedule.reduce_arena, next.offset + bytes);
  }
  std::ranges::sort(placed, {}, &Reduction::issue);
  std::map<int, std::size_t> newest;
  for (std::size_t i = 0; i < placed.size(); ++i) newest[placed[i].unit] = i;
  for (const auto& [unit, index] : newest) placed[index].replicas = true;
  schedule.reductions = std::move(placed);
}

// Anywhere; who had the bytes earlier is waited for.
void place_scratch(Schedule& schedule, std::mt19937_64& random) {
  schedule.scratch += between(0, 4, random);
  for (std::size_t i = 0; i < schedule.reductions.size(); ++i) {
    Reduction& next = schedule.reductions[i];
    const std::int64_t bytes = schedule.scratch_bytes[at(next.unit)];
    next.scratch = between(0, static_cast<int>(schedule.scratch - bytes), random);
    for (std::size_t k = 0; k < i; ++k) {
      const Reduction& other = schedule.reductions[k];
      if (overlap(next.scratch, bytes, other.scratch, schedule.scratch_bytes[at(other.unit)]))
        next.scratch_waits.push_back(static_cast<int>(k));
    }
  }
}

}  // namespace

Recorder::Recorder(std::string name, const std::vector<Parameter>& parameters, StepKind kind) : kind_(kind) {
  made_.name = std::move(name);
  for (const Parameter& it : parameters)
    made_.sizes.push_back({.name = it.name,
                           .gathered = it.gathered,
                           .unpacked = it.unpacked,
                           .columnwise = it.columnwise,
                           .staging = it.staging,
                           .scratch = it.staging,
                           .gather = {{mesh::Transfer::gather, it.gathered}},
                           .reduce = {{mesh::Transfer::reduce, it.staging}},
                           .replicas = {{mesh::Transfer::replicas, it.staging}}});
}

void Recorder::backward(int parameter) {
  consume(parameter, Pass::backward);
  if (made_.sizes[at(parameter)].staging > 0) produce(parameter);
  release(parameter, Pass::backward);
}

void Recorder::publish(int parameter) {
  microbatch_ = -1;
  add(EventKind::publish, parameter, Pass::forward);
}

void Recorder::amaxes(int weights) {
  microbatch_ = -1;
  add(EventKind::comm, kNoParameter, Pass::forward);
  made_.trace.back().group = kCastGroup;
  made_.trace.back().op = kAmaxOp;
  made_.trace.back().bytes = 4 * weights;
}

void Recorder::add(EventKind kind, int parameter, Pass pass) {
  made_.trace.push_back({.kind = kind,
                         .step = kind_,
                         .microbatch = microbatch_,
                         .pass = pass,
                         .parameter = parameter,
                         .ordinal = happened_[{kind, microbatch_, pass, parameter}]++});
}

Case Recorder::take(std::vector<Unit> units) {
  if (units.empty())
    for (int parameter = 0; parameter < static_cast<int>(made_.sizes.size()); ++parameter) units.push_back({parameter});
  for (const Unit& unit : units) {
    const ParameterSize& first = made_.sizes[at(unit[0])];
    if (first.gathered + first.unpacked + first.columnwise > 0) made_.gather_units.push_back(unit);
    if (made_.sizes[at(unit[0])].staging > 0 && kind_ == StepKind::train) made_.reduce_units.push_back(unit);
  }
  return std::move(made_);
}

std::vector<Case> cases_of_domains() {
  std::vector<Case> all;
  for (const Case& made : {two_layers(), recompute(), delayed_gradients(), unpacked_weights(), columnwise()})
    for (const int domains : {2, 3}) {
      all.push_back(made);
      all.back().name += fmt::format(" over {} domains", domains);
      for (std::size_t id = 0; id < made.sizes.size(); ++id)
        all.back().sizes[id].domain = static_cast<int>(id) % domains;
    }
  return all;
}

std::vector<Case> cases() {
  return {two_layers(), tied_embedding(),      layer_twice(), frozen(),           recompute(),
          coalesced(),  delayed_gradients(),   buckets(),     unpacked_weights(), unpacked_together(),
          columnwise(), columnwise_together(), evaluation()};
}

Schedule random_schedule(const Case& made, std::mt19937_64& random) {
  Schedule schedule{.kind = made.trace[0].step, .events = static_cast<int>(made.trace.size())};
  schedule.body = static_cast<int>(std::ranges::find(made.trace, -1, &Event::microbatch) - made.trace.begin());
  for (const Event& event : made.trace) schedule.microbatches = std::max(schedule.microbatches, event.microbatch + 1);
  schedule.trace_hash = hash_trace(made.trace);
  schedule.gather_units = made.gather_units;
  schedule.reduce_units = made.reduce_units;
  for (const Unit& unit : made.gather_units) {
    schedule.gather_domains.push_back(made.sizes[at(unit.front())].domain);
    schedule.gather_bytes.push_back(0);
    schedule.unpacked_bytes.push_back(0);
    schedule.columnwise_bytes.push_back(0);
    for (const int id : unit) {
      schedule.gather_bytes.back() += made.sizes[at(id)].gathered;
      schedule.unpacked_bytes.back() += made.sizes[at(id)].unpacked;
      schedule.columnwise_bytes.back() += made.sizes[at(id)].columnwise;
    }
  }
  for (const Unit& unit : made.reduce_units) {
    schedule.reduce_domains.push_back(made.sizes[at(unit.front())].domain);
    schedule.reduce_bytes.push_back(0);
    std::int64_t scratch = 0;
    for (const int id : unit) schedule.reduce_bytes.back() += made.sizes[at(id)].staging;
    for (const int id : unit) scratch += made.sizes[at(id)].scratch;
    schedule.scratch_bytes.push_back(scratch);
    schedule.scratch = std::max(schedule.scratch, scratch);
  }
  place_gathers(made, schedule, random);
  place_copies(made, schedule, random);
  place_reductions(made, schedule, random);
  place_scratch(schedule, random);
  return schedule;
}

Case mirrored_layers(int layers, int microbatches, const std::vector<std::int64_t>& bytes) {
  std::vector<Recorder::Parameter> parameters;
  for (int layer = 0; layer < layers; ++layer) {
    const std::int64_t own = bytes[at(layer) % bytes.size()];
    parameters.push_back({fmt::format("w{}", layer), own, own});
  }
  Recorder step("mirrored layers", parameters);
  for (int microbatch = 0; microbatch < microbatches; ++microbatch) {
    step.microbatch();
    for (int layer = 0; layer < layers; ++layer) step.use(layer, Pass::forward);
    for (int layer = layers - 1; layer >= 0; --layer) step.backward(layer);
  }
  for (int layer = 0; layer < layers; ++layer) step.publish(layer);
  return step.take();
}

}  // namespace tessera::schedule::oracle
