#include "tests/schedule/domain_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>

#include "tessera/base/error.h"
#include "tessera/schedule/plan/plan.h"

namespace tessera::schedule::domain_orders {
namespace {

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// A range of bytes of the arena, and the event of its last use.
struct Held {
  std::int64_t begin = 0, end = 0;
  int last = 0, owner = 0;
  bool overlaps(const Held& other) const { return begin < other.end && other.begin < end; }
};

Held arrived(const Schedule& schedule, const Residency& it) {
  return {it.offset, it.offset + schedule.gather_bytes[at(it.unit)], schedule.unpacks(it.unit) ? it.wait : it.last,
          it.unit};
}
Held unpacked(const Schedule& schedule, const Residency& it) {
  return {it.unpacked_offset, it.unpacked_offset + schedule.unpacked_bytes[at(it.unit)], it.last, it.unit};
}

const std::string& name_of(const Residency& it, const Schedule& schedule, const std::vector<ParameterSize>& sizes) {
  return sizes[at(schedule.gather_units[at(it.unit)].front())].name;
}

// Returns, for each unit, the position of the publish event of its newest member.
std::vector<int> publishes(const Trace& trace, const Schedule& schedule) {
  std::vector<int> found;
  for (const Unit& unit : schedule.gather_units) {
    found.push_back(std::min(-1, -schedule.optimizer_events()));
    for (int index = schedule.body; index < schedule.events; ++index)
      if (std::ranges::count(unit, trace[at(index)].parameter))
        found.back() = std::max(found.back(), schedule.position_of(index));
  }
  return found;
}

// An arena that forgets evicted tenants: only the tenant that takes the bytes of an evicted tenant remembers it.
class ForgetfulArena {
 public:
  // Returns the latest use of the tenants that this gather evicts, and of the tenants that compute has evicted before
  // from the same bytes.
  int gather(const Held& next, int free) {
    if (next.begin == next.end) return free;
    free = std::max(free, leave(next));
    std::erase_if(taken_over_, [&](const Held& gone) {
      if (!gone.overlaps(next)) return false;
      free = std::max(free, gone.last);
      return true;
    });
    tenants_.push_back(next);
    return free;
  }
  void unpack(const Held& next) {
    if (next.begin == next.end) return;
    for (const Held& tenant : tenants_)
      if (tenant.overlaps(next)) taken_over_.push_back(tenant);
    leave(next);
    tenants_.push_back(next);
  }
  // Returns the bytes of a unit that is gathered.
  int move(int unit, int free) {
    std::erase_if(tenants_, [&](const Held& tenant) {
      if (tenant.owner == unit) free = std::max(free, tenant.last);
      return tenant.owner == unit;
    });
    return free;
  }

 private:
  int leave(const Held& next) {
    int last = std::numeric_limits<int>::min();
    std::erase_if(tenants_, [&](const Held& tenant) {
      if (tenant.overlaps(next)) last = std::max(last, tenant.last);
      return tenant.overlaps(next);
    });
    return last;
  }
  std::vector<Held> tenants_, taken_over_;
};

void add_event(Trace& trace, EventKind kind, Pass pass, int parameter, int microbatch) {
  trace.push_back({.kind = kind, .microbatch = microbatch, .pass = pass, .parameter = parameter});
}

}  // namespace

Step layers(const LayerOptions& options, std::mt19937& random) {
  constexpr std::int64_t kibibytes[] = {6, 4, 28, 14};  // relative sizes of the weights of a layer
  Step step;
  for (int layer = 0; layer < options.layers; ++layer)
    for (int weight = 0; weight < 4; ++weight) {
      ParameterSize size{.name = fmt::format("w{}", step.sizes.size())};
      size.domain = options.domains == 2 ? weight / 2 : weight % options.domains;
      const std::int64_t odd = 1 + static_cast<std::int64_t>(random() % 40);
      size.gathered = 1024 * (options.odd ? odd : kibibytes[weight] * (weight >= 2 ? 3 : 1));
      if (options.unpacked) size.unpacked = 2 * size.gathered;
      size.staging = size.gathered;
      size.scratch = size.gathered / 2;
      size.gather = {{mesh::Transfer::gather, size.gathered / 2}};
      size.reduce = {{mesh::Transfer::reduce, size.gathered / 2}};
      step.sizes.push_back(size);
    }
  const int weights = static_cast<int>(step.sizes.size());
  for (int microbatch = 0; microbatch < options.microbatches; ++microbatch) {
    for (int id = 0; id < weights; ++id)
      for (const EventKind kind : {EventKind::consume, EventKind::release})
        add_event(step.trace, kind, Pass::forward, id, microbatch);
    for (int id = weights - 1; id >= 0; --id)
      for (const EventKind kind : {EventKind::consume, EventKind::produce, EventKind::release})
        add_event(step.trace, kind, Pass::backward, id, microbatch);
  }
  for (int id = 0; id < weights; ++id) add_event(step.trace, EventKind::publish, Pass::forward, id, -1);
  return step;
}

std::vector<UnorderedPair> unordered_pairs(const Schedule& schedule) {
  const auto domain_of = [&](const Residency& it) { return schedule.gather_domains[at(it.unit)]; };
  std::vector<UnorderedPair> pairs;
  std::map<int, int> waited;  // index: domain; the latest position for which its lane has waited
  for (int gather = 0; gather < static_cast<int>(schedule.residencies.size()); ++gather) {
    const Residency& next = schedule.residencies[at(gather)];
    const auto [known, is_first] = waited.try_emplace(domain_of(next), next.free);
    known->second = std::max(known->second, next.free);
    const Held taken = arrived(schedule, next);
    for (int earlier = 0; earlier < gather; ++earlier) {
      const Residency& other = schedule.residencies[at(earlier)];
      for (const Held& held : {arrived(schedule, other), unpacked(schedule, other)})
        if (held.overlaps(taken) && held.last > known->second && other.wait < next.wait)
          pairs.push_back({.gather = gather, .earlier = earlier});
    }
  }
  return pairs;
}

std::string to_string(const UnorderedPair& pair, const Schedule& schedule, const std::vector<ParameterSize>& sizes) {
  const Residency &next = schedule.residencies[at(pair.gather)], &other = schedule.residencies[at(pair.earlier)];
  return fmt::format(
      "the gather of {} (domain {}, issue {}, free {}) may overwrite {} (domain {}), which is read until {}",
      name_of(next, schedule, sizes), schedule.gather_domains[at(next.unit)], next.issue, next.free,
      name_of(other, schedule, sizes), schedule.gather_domains[at(other.unit)], other.last);
}

Schedule with_waits_of_one_lane(const Step& step, Schedule schedule) {
  const std::vector<int> published = publishes(step.trace, schedule);
  ForgetfulArena arena;
  for (Residency& it : schedule.residencies) {
    it.free = arena.move(it.unit, published[at(it.unit)]);
    it.free = std::min(it.issue, arena.gather(arrived(schedule, it), it.free));
    if (schedule.unpacks(it.unit)) arena.unpack(unpacked(schedule, it));
  }
  return schedule;
}

std::vector<Schedule> plans(const Step& step, int budgets) {
  const Schedule most = plan(step.trace, step.sizes, {});
  const Schedule least = plan(step.trace, step.sizes, {.gather_budget = kMinimum, .reduce_budget = kMinimum});
  std::vector<Schedule> all;
  for (int i = 0; i < budgets; ++i) {
    const std::int64_t more = (most.gather_arena - least.gather_arena) * i / std::max(budgets - 1, 1);
    all.push_back(plan(step.trace, step.sizes, {.gather_budget = least.gather_arena + more}));
  }
  return all;
}

}  // namespace tessera::schedule::domain_orders
