#include "tests/schedule/oracle.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <unordered_set>
#include <utility>

namespace tessera::schedule::oracle {
namespace {

constexpr int kPoison = -1;
constexpr int kCopy = 500;  // added to the value of a weight in its columnwise copy; there are fewer versions
constexpr int kRuns = 300;  // number of random orders if there are too many orders
constexpr std::uint64_t kPoisonBits = std::uint64_t{1} << 63;

struct MainGrad {
  // Bit sets of contributions: added once, added more than once, summed over replicas.
  std::uint64_t once = 0, again = 0, over_replicas = 0;
  bool operator==(const MainGrad&) const = default;
};

// The state that depends on the order of operations.
struct State {
  std::vector<int> done;  // index: lane; number of operations that are done
  // Index: parameter; version of its shard, kPoison while compute writes the shard.
  std::vector<int> shards;
  std::vector<int> weights;            // index: byte of the gather arena; parameter * 1000 + version
  std::vector<std::uint64_t> staging;  // index: byte of the reduce arena; bit set of contributions
  std::vector<MainGrad> main_grads;    // index: parameter
  // Contributions that are exchanged and not added yet; index: reduction and parameter.
  std::vector<std::uint64_t> exchanged;
  // Index: byte of the scratch; the reduction whose exchange wrote the byte, -1: not written.
  std::vector<int> scratch;
  // Values of main_grad that an unfinished addition has read. First the additions of reductions, then the additions
  // over replicas. Index: parameter.
  std::vector<MainGrad> read;

  std::string key() const {
    std::string bytes;
    auto append = [&](const auto& values) {
      bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
    };
    append(done), append(shards), append(weights), append(staging), append(main_grads), append(exchanged),
        append(scratch), append(read);
    return bytes;
  }
};

class Machine {
 public:
  Machine(const std::vector<ParameterSize>& sizes, const Schedule& schedule, const Program& program)
      : sizes_(sizes), schedule_(schedule), program_(program) {}

  State initial() const {
    State state;
    state.done.assign(program_.lanes.size(), 0);
    state.shards.assign(sizes_.size(), 0);
    state.weights.assign(static_cast<std::size_t>(schedule_.gather_arena), kPoison);
    state.staging.assign(static_cast<std::size_t>(schedule_.reduce_arena), kPoisonBits);
    state.main_grads.resize(sizes_.size());
    state.exchanged.assign(schedule_.reductions.size() * sizes_.size(), 0);
    state.scratch.assign(static_cast<std::size_t>(schedule_.scratch), -1);
    state.read.resize(2 * sizes_.size());
    return state;
  }

  bool is_done(const State& state) const {
    for (std::size_t lane = 0; lane < program_.lanes.size(); ++lane)
      if (next(state, lane)) return false;
    return true;
  }
  const Operation* next(const State& state, std::size_t lane) const {
    const auto done = static_cast<std::size_t>(state.done[lane]);
    return done < program_.lanes[lane].size() ? &program_.lanes[lane][done] : nullptr;
  }
  bool can_run(const State& state, std::size_t lane) const {
    const Operation* operation = next(state, lane);
    return operation && std::ranges::all_of(operation->waits, [&](const auto& wait) {
             return state.done[static_cast<std::size_t>(wait.first)] >= wait.second;
           });
  }

  // Runs the lane's next operation. Returns the error, or an empty string.
  std::string run(State& state, std::size_t lane) const {
    const Operation& it = *next(state, lane);
    ++state.done[lane];
    switch (it.action) {
      case Action::fill:
      case Action::filled:
      case Action::unpack:
      case Action::unpacked:
      case Action::read_weight:
      case Action::end_packed:
      case Action::end_weights:
      case Action::copy:
      case Action::copied:
      case Action::read_copy:
      case Action::end_copy:
      case Action::update:
      case Action::updated:
        return run_weights(state, it);
      case Action::none:
        return {};
      case Action::fail:
        return it.why;
      default:
        return run_gradients(state, it);
    }
  }

 private:
  static std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

  // Calls visit(parameter, byte) for the bytes of each member, then with parameter -1 for the padding. Returns false if
  // the bytes are outside the arena.
  template <typename Visit>
  static bool each_byte(const Unit& members, const std::vector<ParameterSize>& sizes, std::int64_t ParameterSize::*size,
                        std::int64_t offset, std::int64_t bytes, std::size_t arena, Visit visit) {
    std::int64_t byte = offset;
    for (const ParameterId id : members)
      for (std::int64_t i = 0; i < sizes[at(id)].*size; ++i, ++byte) {
        if (byte < 0 || at(byte) >= arena) return false;
        visit(id, at(byte));
      }
    for (; byte < offset + bytes; ++byte) {
      if (at(byte) >= arena) return false;
      visit(-1, at(byte));
    }
    return true;
  }
  // Returns the gathered bytes of a residency.
  template <typename Visit>
  bool each_gathered(const State& state, int item, Visit visit) const {
    const Residency& it = schedule_.residencies[at(item)];
    return each_byte(schedule_.gather_units[at(it.unit)], sizes_, &ParameterSize::gathered, it.offset,
                     schedule_.gather_bytes[at(it.unit)], state.weights.size(), visit);
  }
  // Returns the bytes of a residency that compute reads.
  template <typename Visit>
  bool each_weight(const State& state, int item, Visit visit) const {
    const Residency& it = schedule_.residencies[at(item)];
    if (!schedule_.unpacks(it.unit)) return each_gathered(state, item, visit);
    return each_byte(schedule_.gather_units[at(it.unit)], sizes_, &ParameterSize::unpacked, it.unpacked_offset,
                     schedule_.unpacked_bytes[at(it.unit)], state.weights.size(), visit);
  }
  template <typename Visit>
  bool each_copy(const State& state, int item, Visit visit) const {
    const ColumnwiseCopy& it = schedule_.copies[at(item)];
    return each_byte(schedule_.gather_units[at(it.unit)], sizes_, &ParameterSize::columnwise, it.offset,
                     schedule_.columnwise_bytes[at(it.unit)], state.weights.size(), visit);
  }
  template <typename Visit>
  bool each_gradient(State& state, int item, Visit visit) const {
    const Reduction& it = schedule_.reductions[at(item)];
    return each_byte(schedule_.reduce_units[at(it.unit)], sizes_, &ParameterSize::staging, it.offset,
                     schedule_.reduce_bytes[at(it.unit)], state.staging.size(), visit);
  }
  template <typename Visit>
  bool each_scratch(int item, Visit visit) const {
    const Reduction& it = schedule_.reductions[at(item)];
    const std::int64_t bytes = schedule_.scratch_bytes[at(it.unit)];
    if (it.scratch < 0 || it.scratch + bytes > schedule_.scratch) return false;
    for (std::int64_t byte = it.scratch; byte < it.scratch + bytes; ++byte) visit(at(byte));
    return true;
  }
  std::uint64_t& exchanged(State& state, int item, int id) const {
    return state.exchanged[at(item) * sizes_.size() + at(id)];
  }
  const Unit& reduced(int item) const { return schedule_.reduce_units[at(schedule_.reductions[at(item)].unit)]; }

  int stored(const State& state, int id) const {
    const int version = id < 0 ? kPoison : state.shards[at(id)];
    return version == kPoison ? kPoison : id * 1000 + version;
  }

  // Reads the gathered bytes of a residency into `found`; index: parameter. All bytes of one weight must be equal.
  // Different bytes count as poison. Returns false if the bytes are outside the arena.
  bool read_gathered(const State& state, int item, std::vector<std::optional<int>>& found) const {
    return each_gathered(state, item, [&](int id, std::size_t byte) {
      if (id < 0) return;
      std::optional<int>& weight = found[at(id)];
      weight = weight.value_or(state.weights[byte]) == state.weights[byte] ? state.weights[byte] : kPoison;
    });
  }

  bool unpack(State& state, int item) const {
    std::vector<std::optional<int>> found(sizes_.size());
    const bool inside = read_gathered(state, item, found);
    return inside && each_weight(state, item, [&](int id, std::size_t byte) {
             state.weights[byte] = id < 0 ? kPoison : found[at(id)].value_or(stored(state, id));
           });
  }

  bool copy(State& state, int item, int residency) const {
    std::vector<std::optional<int>> found(sizes_.size());
    const bool inside = residency < 0 || read_gathered(state, residency, found);
    return inside && each_copy(state, item, [&](int id, std::size_t byte) {
             const int value = id < 0 ? kPoison : found[at(id)].value_or(stored(state, id));
             state.weights[byte] = value == kPoison ? kPoison : value + kCopy;
           });
  }

  std::string run_weights(State& state, const Operation& it) const {
    bool inside = true, right = true;
    const auto poison = [&](int, std::size_t byte) { state.weights[byte] = kPoison; };
    if (it.action == Action::fill || it.action == Action::end_packed) inside = each_gathered(state, it.item, poison);
    if (it.action == Action::unpack || it.action == Action::end_weights) inside = each_weight(state, it.item, poison);
    if (it.action == Action::filled)
      inside =
          each_gathered(state, it.item, [&](int id, std::size_t byte) { state.weights[byte] = stored(state, id); });
    if (it.action == Action::unpacked) inside = unpack(state, it.item);
    if (it.action == Action::copy || it.action == Action::end_copy) inside = each_copy(state, it.item, poison);
    if (it.action == Action::copied) inside = copy(state, it.item, it.version);
    if (it.action == Action::read_copy && it.item < 0) return "a columnwise copy is used that is nowhere";
    if (it.action == Action::read_copy)
      inside = each_copy(state, it.item, [&](int id, std::size_t byte) {
        if (id == it.parameter) right &= state.weights[byte] == id * 1000 + it.version + kCopy;
      });
    if (it.action == Action::read_weight && it.item < 0) return "a weight is used that is nowhere";
    if (it.action == Action::read_weight)
      inside = each_weight(state, it.item, [&](int id, std::size_t byte) {
        if (id == it.parameter) right &= state.weights[byte] == id * 1000 + it.version;
      });
    if (it.action == Action::update) state.shards[at(it.parameter)] = kPoison;
    if (it.action == Action::updated) state.shards[at(it.parameter)] = it.version;
    if (!inside) return "outside of the gather arena";
    return right ? "" : "a wrong weight is read: " + sizes_[at(it.parameter)].name;
  }

  std::string run_gradients(State& state, const Operation& it) const {
    bool inside = true, right = true;
    const std::size_t half = it.action == Action::read_sum || it.action == Action::sum_replicas ? sizes_.size() : 0;
    if (it.action == Action::clear)
      inside = each_gradient(state, it.item, [&](int, std::size_t byte) { state.staging[byte] = 0; });
    if (it.action == Action::end_staging)
      inside = each_gradient(state, it.item, [&](int, std::size_t byte) { state.staging[byte] = kPoisonBits; });
    if (it.action == Action::produce)
      inside = each_gradient(state, it.item, [&](int id, std::size_t byte) {
        if (id == it.parameter) state.staging[byte] |= std::uint64_t{1} << (it.version - 1);
      });
    if (it.action == Action::read_grad || it.action == Action::read_sum)
      for (const ParameterId id : reduced(it.item)) state.read[half + at(id)] = state.main_grads[at(id)];
    if (it.action == Action::exchange) {
      inside = each_scratch(it.item, [&](std::size_t byte) { state.scratch[byte] = it.item; });
      for (const ParameterId id : reduced(it.item)) exchanged(state, it.item, id) = 0;
      // All bytes of one gradient must be equal. Different bytes count as poison.
      std::vector<bool> seen(sizes_.size(), false);
      inside &= each_gradient(state, it.item, [&](int id, std::size_t byte) {
        if (id < 0) return;
        std::uint64_t& sum = exchanged(state, it.item, id);
        if (seen[at(id)] && sum != state.staging[byte])
          sum = kPoisonBits;
        else
          sum = state.staging[byte];
        seen[at(id)] = true;
      });
    }
    if (it.action == Action::add)
      inside = each_scratch(it.item, [&](std::size_t byte) { right &= state.scratch[byte] == it.item; });
    if (it.action == Action::add)
      for (const ParameterId id : reduced(it.item)) {
        const MainGrad& before = state.read[at(id)];
        const std::uint64_t bits = exchanged(state, it.item, id);
        state.main_grads[at(id)] = {before.once | bits, before.again | (before.once & bits), before.over_replicas};
      }
    if (it.action == Action::sum_replicas)
      for (const ParameterId id : reduced(it.item)) {
        const MainGrad& before = state.read[half + at(id)];
        right &= before.over_replicas == 0;
        state.main_grads[at(id)] = {before.once, before.again, before.once};
      }
    if (it.action == Action::optimize)
      for (std::size_t id = 0; id < sizes_.size(); ++id) {
        const std::uint64_t all = program_.contributions[id];
        right &= state.main_grads[id] == MainGrad{all, 0, all};
        state.main_grads[id] = {};
      }
    if (!inside) return "outside of the reduce arena or of the scratch";
    return right ? "" : "a gradient is lost, doubled, or not what was produced";
  }

  const std::vector<ParameterSize>& sizes_;
  const Schedule& schedule_;
  const Program& program_;
};

// Visits every reachable state once, depth first.
Outcome run_all(const Machine& machine, std::size_t max_states) {
  Outcome outcome{.exhaustive = true};
  std::unordered_set<std::string> seen;
  std::vector<State> open = {machine.initial()};
  while (!open.empty()) {
    const State state = std::move(open.back());
    open.pop_back();
    bool moved = false;
    for (std::size_t lane = 0; lane < state.done.size(); ++lane) {
      if (!machine.can_run(state, lane)) continue;
      moved = true;
      State after = state;
      outcome.wrong = machine.run(after, lane);
      if (!outcome.wrong.empty()) return outcome;
      if (seen.insert(after.key()).second) open.push_back(std::move(after));
    }
    if (!moved && !machine.is_done(state)) outcome.wrong = "deadlock";
    if (!outcome.wrong.empty()) return outcome;
    outcome.states = seen.size();
    if (outcome.states > max_states) {
      outcome.exhaustive = false;
      return outcome;
    }
  }
  return outcome;
}

// Runs lanes by priorities that change a few times in a run, so that lanes are likely far behind or far ahead.
std::string run_random(const Machine& machine, std::mt19937_64& random) {
  State state = machine.initial();
  std::vector<std::size_t> order(state.done.size());
  std::iota(order.begin(), order.end(), 0);
  for (int until_change = 0; !machine.is_done(state); --until_change) {
    if (until_change <= 0) {
      std::ranges::shuffle(order, random);
      until_change = static_cast<int>(random() % 30);
    }
    const auto lane = std::ranges::find_if(order, [&](std::size_t l) { return machine.can_run(state, l); });
    if (lane == order.end()) return "deadlock";
    if (std::string wrong = machine.run(state, *lane); !wrong.empty()) return wrong;
  }
  return {};
}

}  // namespace

Outcome execute(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                std::size_t max_states, std::uint64_t seed) {
  // Runs three kinds of steps: the first step, a step after another step, and a step after a skipped update.
  const Program program = compile(trace, sizes, schedule, {true, false, true});
  const Machine machine(sizes, schedule, program);
  Outcome outcome = run_all(machine, max_states);
  if (outcome.exhaustive) return outcome;
  std::mt19937_64 random(seed);
  for (int run = 0; run < kRuns && outcome.wrong.empty(); ++run) outcome.wrong = run_random(machine, random);
  return outcome;
}

}  // namespace tessera::schedule::oracle
