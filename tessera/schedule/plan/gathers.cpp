// Plans the gathers: the bytes of each gathered weight and of each columnwise copy in the arena, and the interval in
// which it occupies them.
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

// An interval in which at least one member of a unit is consumed and not yet released. For a use of the columnwise
// copies, only backward passes count.
struct Use {
  int unit = 0;
  bool is_copy = false;
  int first = 0, last = 0;  // event indices of the consume and release events
  int next = kNever;        // the value `first` of the next use of this kind
};

// Collects the uses of one kind. Index of both vectors: unit.
class OpenUses {
 public:
  explicit OpenUses(std::size_t units) : users_(units, 0), open_(units, 0) {}

  void consume(const Use& use, std::vector<Use>& uses) {
    const auto unit = static_cast<std::size_t>(use.unit);
    if (users_[unit]++ > 0) return;
    open_[unit] = uses.size();
    uses.push_back(use);
  }
  void release(int unit, int index, std::vector<Use>& uses) {
    const auto u = static_cast<std::size_t>(unit);
    TESSERA_CHECK(users_[u] > 0, "event {}: unit {} is released but not consumed", index, unit);
    if (--users_[u] == 0) uses[open_[u]].last = index;
  }

 private:
  std::vector<int> users_;         // number of consume events without a release event
  std::vector<std::size_t> open_;  // index of the newest use
};

std::vector<int> units_of(const Schedule& schedule) {
  std::vector<int> unit_of;
  for (int unit = 0; unit < static_cast<int>(schedule.gather_units.size()); ++unit)
    for (const ParameterId member : schedule.gather_units[static_cast<std::size_t>(unit)]) {
      unit_of.resize(std::max(unit_of.size(), static_cast<std::size_t>(member) + 1), -1);
      unit_of[static_cast<std::size_t>(member)] = unit;
    }
  return unit_of;
}

// Returns the uses in the order of `first`. If both kinds begin at one event, the use of the weights comes first.
std::vector<Use> uses_of(const Trace& trace, const Schedule& schedule, std::vector<int>& published) {
  const std::vector<int> unit_of = units_of(schedule);
  const std::size_t units = schedule.gather_units.size();
  OpenUses weights(units), copies(units);
  published.assign(units, std::min(-1, -schedule.optimizer_events()));
  std::vector<Use> uses;
  for (int index = 0; index < schedule.events; ++index) {
    const Event& event = trace[static_cast<std::size_t>(index)];
    const auto parameter = static_cast<std::size_t>(event.parameter);
    if (event.parameter < 0 || parameter >= unit_of.size() || unit_of[parameter] < 0) continue;
    const int unit = unit_of[parameter];
    int& publish = published[static_cast<std::size_t>(unit)];
    if (event.kind == EventKind::publish) publish = std::max(publish, schedule.position_of(index));
    const bool moves = !schedule.stays_in_place(unit);
    const bool copied = schedule.copies_columnwise(unit) && event.pass == Pass::backward;
    if (event.kind == EventKind::consume) {
      if (moves) weights.consume({.unit = unit, .first = index, .last = -1}, uses);
      if (copied) copies.consume({.unit = unit, .is_copy = true, .first = index, .last = -1}, uses);
    }
    if (event.kind != EventKind::release) continue;
    if (moves) weights.release(unit, index, uses);
    if (copied) copies.release(unit, index, uses);
  }
  std::vector<int> next(2 * units, kNever);  // index: twice the unit, plus 1 for copies
  for (auto use = uses.rbegin(); use != uses.rend(); ++use) {
    TESSERA_CHECK(use->last >= 0, "event {}: unit {} is consumed but never released", use->first, use->unit);
    use->next = std::exchange(next[2 * static_cast<std::size_t>(use->unit) + (use->is_copy ? 1 : 0)], use->first);
  }
  return uses;
}

// Arena offsets of a use, in bytes: of the two stages of the weights, or of the columnwise copies.
struct Spots {
  std::int64_t gathered = 0, unpacked = 0, copy = 0;
};

// A placement: the residencies in the order of issue, and the copies in the order of `make`.
struct Placed {
  std::vector<Residency> residencies;
  std::vector<ColumnwiseCopy> copies;

  // Returns whether the schedule needs fewer gathers than another one, or as many gathers and at most as many copies.
  bool is_no_worse_than(const Placed& other) const {
    return std::pair(residencies.size(), copies.size()) <= std::pair(other.residencies.size(), other.copies.size());
  }
};

// For each byte of the arena, the last use by an evicted weight. Gathers of other domains, and gathers into bytes that
// compute reuses by unpacking, wait for that use. No other wait orders these gathers after that use.
class LastUses {
 public:
  // The last use of the tenant is later than every earlier use of its bytes.
  void add(const Tenant& gone) {
    const std::int64_t begin = gone.offset, end = gone.offset + gone.bytes;
    cut(begin);
    cut(end);
    uses_.erase(uses_.lower_bound(begin), uses_.lower_bound(end));
    uses_[begin] = {end, gone.last};
  }
  // Returns the latest use of a byte in [begin, end), or `otherwise` if no weight was evicted from these bytes.
  int latest(std::int64_t begin, std::int64_t end, int otherwise) const {
    auto at = uses_.upper_bound(begin);
    if (at != uses_.begin() && std::prev(at)->second.end > begin) --at;
    int latest = otherwise;
    for (; at != uses_.end() && at->first < end; ++at) latest = std::max(latest, at->second.last);
    return latest;
  }

 private:
  struct Use {
    std::int64_t end = 0;
    int last = 0;
  };
  void cut(std::int64_t at) {
    const auto above = uses_.lower_bound(at);
    if (above == uses_.begin() || std::prev(above)->second.end <= at) return;
    Use& below = std::prev(above)->second;
    uses_[at] = below;
    below.end = at;
  }

  std::map<std::int64_t, Use> uses_;  // key: first byte of a range; the ranges are disjoint
};

// Placement of weights that are unpacked. apart: each stage has its own bytes. together: both stages are adjacent and
// are kept and evicted together, which leaves fewer gaps in a small arena.
enum class Stages : std::uint8_t { apart, together };

// Places uses in `limit` bytes, in the order of calls.
class Placer {
 public:
  Placer(const Schedule& schedule, const std::vector<int>& published, std::int64_t limit, Stages stages)
      : schedule_(schedule),
        published_(published),
        stages_(stages),
        arena_(limit),
        stays_(published.size(), -1),
        copy_stays_(published.size(), -1) {}

  // Places the use at the given spots. If `given` is null, the arena chooses the offsets. Returns false if the arena
  // finds no space.
  bool add(const Use& use, const Spots* given) { return use.is_copy ? add_copy(use, given) : add_weights(use, given); }
  Placed take() { return std::move(placed_); }

 private:
  static constexpr int kPacked = -1;  // value of Tenant::owner for packed bytes, which later uses do not share

  bool add_weights(const Use& use, const Spots* given) {
    const auto unit = static_cast<std::size_t>(use.unit);
    const bool unpacks = schedule_.unpacks(use.unit);
    int free = published_[unit];
    if (stays_[unit] >= 0) {
      Residency& residency = placed_.residencies[static_cast<std::size_t>(stays_[unit])];
      const std::int64_t offset = unpacks ? residency.unpacked_offset : residency.offset;
      if (!given || (unpacks ? given->unpacked : given->gathered) == offset) {
        residency.last = use.last;
        arena_.use_again(offset, use.last, use.next);
        return true;
      }
      const Tenant moved = arena_.remove(offset);
      last_uses_.add(moved);
      drop_copy(use.unit);
      free = std::max(free, moved.last);
    }
    Residency next{.unit = use.unit, .free = free, .wait = use.first, .last = use.last};
    const bool placed = unpacks && stages_ == Stages::together
                            ? put_both(use, next)
                            : put_gathered(use, given, next) && (!unpacks || put_unpacked(use, given, next));
    if (!placed) return false;
    std::vector<Residency>& residencies = placed_.residencies;
    next.issue = residencies.empty() ? next.free : std::max(next.free, residencies.back().issue);
    stays_[unit] = static_cast<int>(residencies.size());
    residencies.push_back(next);
    return true;
  }

  // Compute writes the copies after all earlier uses of their bytes, so no wait is needed.
  bool add_copy(const Use& use, const Spots* given) {
    int& stays = copy_stays_[static_cast<std::size_t>(use.unit)];
    if (stays >= 0) {
      ColumnwiseCopy& copy = placed_.copies[static_cast<std::size_t>(stays)];
      if (!given || given->copy == copy.offset) {
        copy.last = use.last;
        arena_.use_again(copy.offset, use.last, use.next);
        return true;
      }
      drop_copy(use.unit);
    }
    const std::int64_t bytes = schedule_.columnwise_bytes[static_cast<std::size_t>(use.unit)];
    const auto found = given ? given->copy : arena_.find(bytes, use.first);
    if (!found) return false;
    put({*found, bytes, use.unit, use.last, use.next, /*is_cheap=*/true});
    stays = static_cast<int>(placed_.copies.size());
    placed_.copies.push_back({.unit = use.unit, .make = use.first, .last = use.last, .offset = *found});
    return true;
  }

  // Places the bytes that the gather lane writes. The gather waits for the last use of every earlier tenant. Packed
  // bytes are in use until `first`.
  bool put_gathered(const Use& use, const Spots* given, Residency& next) {
    const std::int64_t bytes = schedule_.gather_bytes[static_cast<std::size_t>(use.unit)];
    if (bytes == 0) return true;
    // Packed bytes are placed at the high end of the arena. They soon become free there and merge into one gap.
    const Arena::Side side = schedule_.unpacks(use.unit) ? Arena::Side::high : Arena::Side::low;
    const auto found = given ? given->gathered : arena_.find(bytes, use.first, side);
    if (!found) return false;
    next.offset = *found;
    const Tenant packed{*found, bytes, kPacked, use.first}, whole{*found, bytes, use.unit, use.last, use.next};
    put(schedule_.unpacks(use.unit) ? packed : whole);
    next.free = last_uses_.latest(*found, *found + bytes, next.free);
    return true;
  }

  bool put_both(const Use& use, Residency& next) {
    const auto unit = static_cast<std::size_t>(use.unit);
    const std::int64_t unpacked = schedule_.unpacked_bytes[unit], bytes = unpacked + schedule_.gather_bytes[unit];
    const auto found = arena_.find(bytes, use.first);
    if (!found) return false;
    next.unpacked_offset = *found;
    next.offset = *found + unpacked;
    put({*found, bytes, use.unit, use.last, use.next});
    next.free = last_uses_.latest(*found, *found + bytes, next.free);
    return true;
  }

  // Places the bytes that compute writes. Compute writes the unpacked bytes after all earlier uses, so no wait is
  // needed.
  bool put_unpacked(const Use& use, const Spots* given, Residency& next) {
    const std::int64_t bytes = schedule_.unpacked_bytes[static_cast<std::size_t>(use.unit)];
    const auto found = given ? given->unpacked : arena_.find(bytes, use.first);
    if (!found) return false;
    next.unpacked_offset = *found;
    put({*found, bytes, use.unit, use.last, use.next});
    return true;
  }

  // Tenants whose bytes are taken are evicted from the arena.
  void put(const Tenant& tenant) {
    const std::vector<Tenant> evicted = arena_.put(tenant);
    for (const Tenant& gone : evicted) {
      last_uses_.add(gone);
      if (gone.owner != kPacked) (gone.is_cheap ? copy_stays_ : stays_)[static_cast<std::size_t>(gone.owner)] = -1;
    }
    for (const Tenant& gone : evicted)
      if (gone.owner != kPacked && !gone.is_cheap) drop_copy(gone.owner);
  }

  // Evicts the copies of a unit if they are in the arena.
  void drop_copy(int unit) {
    const int copy = std::exchange(copy_stays_[static_cast<std::size_t>(unit)], -1);
    if (copy >= 0) last_uses_.add(arena_.remove(placed_.copies[static_cast<std::size_t>(copy)].offset));
  }

  const Schedule& schedule_;
  const std::vector<int>& published_;  // index: unit
  Stages stages_;
  Arena arena_;
  LastUses last_uses_;
  // Index: unit; the residency and the copy of the unit while they are in the arena.
  std::vector<int> stays_, copy_stays_;
  Placed placed_;
};

// Places the uses in `limit` bytes, at the given spots. If `spots` is empty, the arena chooses the offsets. Returns
// nullopt if the arena finds no space.
std::optional<Placed> place(const std::vector<Use>& uses, const std::vector<int>& published, const Schedule& schedule,
                            std::int64_t limit, std::span<const Spots> spots = {}, Stages stages = Stages::apart) {
  Placer placer(schedule, published, limit, stages);
  for (std::size_t i = 0; i < uses.size(); ++i)
    if (!placer.add(uses[i], spots.empty() ? nullptr : &spots[i])) return std::nullopt;
  return placer.take();
}

// Returns the lowest possible offsets of each use. Packed bytes are in use only at the first event of a use, which
// unpacks them.
std::vector<Spots> lowest_spots(const std::vector<Use>& uses, const Schedule& schedule) {
  std::vector<Stretch> stretches;
  for (const Use& use : uses) {
    const auto unit = static_cast<std::size_t>(use.unit);
    if (use.is_copy) {
      stretches.push_back({use.first, use.last, schedule.columnwise_bytes[unit]});
      continue;
    }
    if (schedule.unpacks(use.unit)) stretches.push_back({use.first, use.last, schedule.unpacked_bytes[unit]});
    if (schedule.gather_bytes[unit] > 0)
      stretches.push_back({use.first, schedule.unpacks(use.unit) ? use.first : use.last, schedule.gather_bytes[unit]});
  }
  const std::vector<std::int64_t> offsets = first_fit(stretches);
  std::vector<Spots> spots;
  auto next = offsets.begin();
  for (const Use& use : uses) {
    spots.emplace_back();
    if (use.is_copy) {
      spots.back().copy = *next++;
      continue;
    }
    if (schedule.unpacks(use.unit)) spots.back().unpacked = *next++;
    if (schedule.gather_bytes[static_cast<std::size_t>(use.unit)] > 0) spots.back().gathered = *next++;
  }
  return spots;
}

// Places the uses at offsets that the arena chooses. Tries both kinds of placement and returns the result with fewer
// gathers.
std::optional<Placed> place_best(const std::vector<Use>& uses, const std::vector<int>& published,
                                 const Schedule& schedule, std::int64_t limit) {
  auto apart = place(uses, published, schedule, limit);
  if (std::ranges::none_of(schedule.unpacked_bytes, [](std::int64_t bytes) { return bytes > 0; })) return apart;
  auto together = place(uses, published, schedule, limit, {}, Stages::together);
  return together && (!apart || !apart->is_no_worse_than(*together)) ? std::move(together) : std::move(apart);
}

std::int64_t end_of(const Placed& placed, const Schedule& schedule) {
  std::int64_t end = 0;
  for (const Residency& residency : placed.residencies) {
    const auto unit = static_cast<std::size_t>(residency.unit);
    end = std::max({end, residency.offset + schedule.gather_bytes[unit],
                    residency.unpacked_offset + schedule.unpacked_bytes[unit]});
  }
  for (const ColumnwiseCopy& copy : placed.copies)
    end = std::max(end, copy.offset + schedule.columnwise_bytes[static_cast<std::size_t>(copy.unit)]);
  return end;
}

// Returns the largest number of bytes that hold weights, or are reserved for a gather, at the same time.
std::int64_t live_peak(const Placed& placed, const Schedule& schedule) {
  // The keys are twice a position, or one less for the segment before the position, in which compute unpacks weights
  // and makes copies.
  std::map<int, std::int64_t> changes;
  for (const Residency& residency : placed.residencies) {
    const auto unit = static_cast<std::size_t>(residency.unit);
    const bool unpacks = schedule.unpacks(residency.unit);
    changes[2 * residency.issue] += schedule.gather_bytes[unit];
    changes[2 * (unpacks ? residency.wait : residency.last)] -= schedule.gather_bytes[unit];
    changes[2 * residency.wait - 1] += schedule.unpacked_bytes[unit];
    changes[2 * residency.last] -= schedule.unpacked_bytes[unit];
  }
  for (const ColumnwiseCopy& copy : placed.copies) {
    const std::int64_t bytes = schedule.columnwise_bytes[static_cast<std::size_t>(copy.unit)];
    changes[2 * copy.make - 1] += bytes;
    changes[2 * copy.last] -= bytes;
  }
  std::int64_t live = 0, peak = 0;
  for (const auto& [position, change] : changes) peak = std::max(peak, live += change);
  return peak;
}

// Limits the budget to the bytes of all units, because packed bytes are placed at the high end of the budget. Returns
// the budget unchanged if no unit is unpacked.
std::int64_t bound_of(std::int64_t budget, const Schedule& schedule) {
  std::int64_t unpacked = 0, all = 0;
  for (const std::int64_t bytes : schedule.unpacked_bytes) unpacked += bytes;
  for (const auto* each : {&schedule.gather_bytes, &schedule.columnwise_bytes})
    for (const std::int64_t bytes : *each) all += bytes;
  return unpacked > 0 ? std::min(budget, all + unpacked) : budget;
}

}  // namespace

void plan_gathers(const Trace& trace, std::int64_t budget, Schedule& schedule) {
  std::vector<int> published;
  const std::vector<Use> uses = uses_of(trace, schedule, published);
  const std::vector<Spots> lowest = lowest_spots(uses, schedule);
  auto smallest = *place(uses, published, schedule, kUnlimited, lowest);
  if (auto tried = place_best(uses, published, schedule, end_of(smallest, schedule));
      tried && tried->is_no_worse_than(smallest))
    smallest = std::move(*tried);
  const std::int64_t minimum = end_of(smallest, schedule);
  if (budget != kMinimum && budget < minimum)
    throw InputError("the budget for gathered weights is {} bytes; the smallest budget that can run is {}", budget,
                     minimum);
  auto best = std::move(smallest);
  auto improve = [&](std::int64_t limit) {
    if (limit <= minimum) return false;
    auto tried = place_best(uses, published, schedule, limit);
    const bool improves = tried && tried->is_no_worse_than(best);
    if (improves) best = std::move(*tried);
    return improves;
  };
  improve(bound_of(budget, schedule));
  // Shrinks the arena to the bytes that the gathers need. If packed bytes leave gaps, a few tries find a smaller arena.
  const std::int64_t live = live_peak(best, schedule), spare = end_of(best, schedule) - live;
  const int tries = bound_of(kUnlimited, schedule) == kUnlimited ? 1 : 8;
  for (int i = 0; i < tries && spare > 0; ++i)
    if (improve(live + spare * i / tries)) break;
  schedule.gather_arena = end_of(best, schedule);
  schedule.residencies = std::move(best.residencies);
  schedule.copies = std::move(best.copies);
}

}  // namespace tessera::schedule
