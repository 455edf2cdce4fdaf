#include <algorithm>
#include <array>
#include <utility>

#include "tests/schedule/oracle_cases.h"

namespace tessera::schedule::oracle {
namespace {

using Random = std::mt19937_64;

constexpr std::array<const char*, kMutations> kNames = {"drop a wait for free",
                                                        "shorten a wait for free",
                                                        "wait later",
                                                        "swap gather offsets",
                                                        "swap reduce offsets",
                                                        "issue a gather earlier",
                                                        "issue a gather later",
                                                        "reuse weights early",
                                                        "reuse staging early",
                                                        "end weights earlier",
                                                        "reduce earlier",
                                                        "staging later",
                                                        "finish earlier",
                                                        "finish later",
                                                        "lose a finish",
                                                        "lose a reduction",
                                                        "repeat a reduction",
                                                        "flip replicas",
                                                        "lose a residency",
                                                        "reverse two gathers",
                                                        "wait earlier",
                                                        "swap the two stages",
                                                        "swap unpacked offsets",
                                                        "reuse unpacked early",
                                                        "lose a wait for scratch",
                                                        "reuse scratch early",
                                                        "make a copy later",
                                                        "end a copy earlier",
                                                        "swap copy offsets",
                                                        "reuse a copy early",
                                                        "lose a copy",
                                                        "repeat a copy"};

std::size_t pick(std::size_t count, Random& random) {
  return random() % count;
}

// Uniform from [low, high]; `low` if the range is empty.
int drawn(int low, int high, Random& random) {
  return high <= low ? low : low + static_cast<int>(random() % static_cast<std::uint64_t>(high - low + 1));
}

// Returns another offset in the arena.
void move_offset(std::int64_t& offset, std::int64_t bytes, std::int64_t arena, Random& random) {
  if (arena > bytes) offset = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(arena - bytes + 1));
}

// Returns the nearest event of this kind and unit before or after `index`, or `index` if the event does not exist.
int neighbour(const Case& made, const Unit& unit, EventKind kind, int index, int direction) {
  for (int i = index + direction; i >= 0 && i < static_cast<int>(made.trace.size()); i += direction) {
    const Event& event = made.trace[static_cast<std::size_t>(i)];
    if (event.kind == kind && std::ranges::count(unit, event.parameter)) return i;
  }
  return index;
}

template <typename Item>
void sort_by_issue(std::vector<Item>& items) {
  std::ranges::stable_sort(items, {}, &Item::issue);
}

// Chooses a residency that is unpacked, if there is one.
void mutate_unpacking(Schedule& schedule, Mutation mutation, Random& random) {
  std::vector<Residency*> all;
  for (Residency& it : schedule.residencies)
    if (schedule.unpacks(it.unit)) all.push_back(&it);
  if (all.empty()) return;
  Residency& it = *all[pick(all.size(), random)];
  if (mutation == Mutation::swap_stages) std::swap(it.offset, it.unpacked_offset);
  if (mutation == Mutation::swap_unpacked_offsets)
    std::swap(it.unpacked_offset, all[pick(all.size(), random)]->unpacked_offset);
  if (mutation == Mutation::reuse_unpacked_early)
    move_offset(it.unpacked_offset, schedule.unpacked_bytes[static_cast<std::size_t>(it.unit)], schedule.gather_arena,
                random);
}

void mutate_gathers(const Case& made, Schedule& schedule, Mutation mutation, Random& random) {
  auto& all = schedule.residencies;
  Residency& it = all[pick(all.size(), random)];
  const Unit& unit = schedule.gather_units[static_cast<std::size_t>(it.unit)];
  const std::int64_t bytes = schedule.gather_bytes[static_cast<std::size_t>(it.unit)];
  const int earliest = std::min(-1, -schedule.optimizer_events());
  switch (mutation) {
    case Mutation::drop_wait_for_free:
      it.free = earliest;
      break;
    case Mutation::shorten_wait_for_free:
      it.free = std::max(earliest, it.free - 1);
      break;
    case Mutation::wait_later:
      it.wait = neighbour(made, unit, EventKind::consume, it.wait, 1);
      break;
    case Mutation::swap_gather_offsets:
      std::swap(it.offset, all[pick(all.size(), random)].offset);
      break;
    case Mutation::gather_earlier:  // also makes its wait earlier if necessary
      it.issue = drawn(earliest, it.issue - 1, random);
      it.free = std::min(it.free, it.issue);
      sort_by_issue(all);
      break;
    case Mutation::gather_later:
      it.issue = drawn(it.issue + 1, schedule.body - 1, random);
      sort_by_issue(all);
      break;
    case Mutation::reuse_weights_early:
      move_offset(it.offset, bytes, schedule.gather_arena, random);
      break;
    case Mutation::end_weights_earlier:
      it.last = neighbour(made, unit, EventKind::release, it.last, -1);
      break;
    case Mutation::wait_earlier:
      it.wait = neighbour(made, unit, EventKind::consume, it.wait, -1);
      break;
    case Mutation::swap_stages:
    case Mutation::swap_unpacked_offsets:
    case Mutation::reuse_unpacked_early:
      return mutate_unpacking(schedule, mutation, random);
    case Mutation::lose_residency:
      all.erase(all.begin() + (&it - all.data()));
      break;
    default:  // swap_units: two gathers in a row the other way round
      if (&it != &all.back()) {
        Residency& next = *(&it + 1);
        std::swap(it.issue, next.issue);
        std::swap(it, next);
        it.free = std::min(it.free, it.issue);
      }
  }
}

void mutate_reductions(const Case& made, Schedule& schedule, Mutation mutation, Random& random) {
  auto& all = schedule.reductions;
  Reduction& it = all[pick(all.size(), random)];
  const Unit& unit = schedule.reduce_units[static_cast<std::size_t>(it.unit)];
  const std::int64_t bytes = schedule.reduce_bytes[static_cast<std::size_t>(it.unit)];
  switch (mutation) {
    case Mutation::swap_reduce_offsets:
      std::swap(it.offset, all[pick(all.size(), random)].offset);
      break;
    case Mutation::reuse_staging_early:
      move_offset(it.offset, bytes, schedule.reduce_arena, random);
      break;
    case Mutation::reduce_earlier:
      it.issue = neighbour(made, unit, EventKind::produce, it.issue, -1);
      it.first = std::min(it.first, it.issue);
      sort_by_issue(all);
      break;
    case Mutation::staging_later:
      it.first = neighbour(made, unit, EventKind::produce, it.first, 1);
      break;
    case Mutation::finish_earlier:
      it.finish = drawn(0, it.finish - 1, random);
      break;
    case Mutation::finish_later:
      it.finish = drawn(it.finish + 1, schedule.body - 1, random);
      break;
    case Mutation::lose_finish:
      it.finish = schedule.body;
      break;
    case Mutation::lose_reduction:
      all.erase(all.begin() + (&it - all.data()));
      break;
    case Mutation::lose_scratch_wait:
      if (!it.scratch_waits.empty()) it.scratch_waits.pop_back();
      break;
    case Mutation::reuse_scratch_early:
      move_offset(it.scratch, schedule.scratch_bytes[static_cast<std::size_t>(it.unit)], schedule.scratch, random);
      break;
    case Mutation::repeat_reduction:
      all.insert(all.begin() + (&it - all.data()), Reduction(it));
      break;
    default:
      it.replicas = !it.replicas;
  }
}

// Returns the nearest event of this kind, unit and a backward pass, like neighbour.
int backward_neighbour(const Case& made, const Unit& unit, EventKind kind, int index, int direction) {
  for (int next = neighbour(made, unit, kind, index, direction); next != index;
       next = neighbour(made, unit, kind, index, direction)) {
    index = next;
    if (made.trace[static_cast<std::size_t>(next)].pass == Pass::backward) break;
  }
  return index;
}

void mutate_copies(const Case& made, Schedule& schedule, Mutation mutation, Random& random) {
  auto& all = schedule.copies;
  ColumnwiseCopy& it = all[pick(all.size(), random)];
  const Unit& unit = schedule.gather_units[static_cast<std::size_t>(it.unit)];
  switch (mutation) {
    case Mutation::copy_later:
      it.make = backward_neighbour(made, unit, EventKind::consume, it.make, 1);
      std::ranges::stable_sort(all, {}, &ColumnwiseCopy::make);
      break;
    case Mutation::end_copy_earlier:
      it.last = backward_neighbour(made, unit, EventKind::release, it.last, -1);
      break;
    case Mutation::swap_copy_offsets:
      std::swap(it.offset, all[pick(all.size(), random)].offset);
      break;
    case Mutation::reuse_copy_early:
      move_offset(it.offset, schedule.columnwise_bytes[static_cast<std::size_t>(it.unit)], schedule.gather_arena,
                  random);
      break;
    case Mutation::lose_copy:
      all.erase(all.begin() + (&it - all.data()));
      break;
    default:  // repeat_copy
      all.insert(all.begin() + (&it - all.data()), ColumnwiseCopy(it));
  }
}

bool is_of_copies(Mutation mutation) {
  return mutation >= Mutation::copy_later;
}

bool is_of_gathers(Mutation mutation) {
  switch (mutation) {
    case Mutation::drop_wait_for_free:
    case Mutation::shorten_wait_for_free:
    case Mutation::wait_later:
    case Mutation::swap_gather_offsets:
    case Mutation::gather_earlier:
    case Mutation::gather_later:
    case Mutation::reuse_weights_early:
    case Mutation::end_weights_earlier:
    case Mutation::lose_residency:
    case Mutation::swap_units:
    case Mutation::wait_earlier:
    case Mutation::swap_stages:
    case Mutation::swap_unpacked_offsets:
    case Mutation::reuse_unpacked_early:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::string name_of(Mutation mutation) {
  return kNames[static_cast<std::size_t>(mutation)];
}

std::optional<Schedule> mutate(const Case& made, const Schedule& schedule, Mutation mutation, Random& random) {
  Schedule mutated = schedule;
  if (is_of_copies(mutation)) {
    if (schedule.copies.empty()) return std::nullopt;
    mutate_copies(made, mutated, mutation, random);
    return mutated == schedule ? std::nullopt : std::optional(mutated);
  }
  if (is_of_gathers(mutation) ? schedule.residencies.empty() : schedule.reductions.empty()) return std::nullopt;
  if (is_of_gathers(mutation))
    mutate_gathers(made, mutated, mutation, random);
  else
    mutate_reductions(made, mutated, mutation, random);
  if (mutated == schedule) return std::nullopt;
  return mutated;
}

}  // namespace tessera::schedule::oracle
