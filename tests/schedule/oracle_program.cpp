// Compiles a schedule to the operations of its lanes.
#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "tests/schedule/oracle.h"

namespace tessera::schedule::oracle {
namespace {

class Compiler {
 public:
  Compiler(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule)
      : trace_(trace), sizes_(sizes), schedule_(schedule) {
    program_.contributions.assign(sizes.size(), 0);
    int domains = 1;
    for (const ParameterSize& size : sizes) domains = std::max(domains, size.domain + 1);
    program_.lanes.resize(static_cast<std::size_t>(lane_of(LaneKind::gather, domains)));
    std::uint64_t bit = 1;
    for (const Event& event : trace)
      if (event.kind == EventKind::produce) program_.contributions[at(event.parameter)] |= std::exchange(bit, bit << 1);
    versions_.assign(sizes.size(), 0);
  }

  void step(bool publishes) {
    passed_[-1] = program_.lanes[0].size();
    if (!warm_)
      for (int position = -schedule_.events; position < -1; ++position) passed_[position] = passed_[-1];
    gathers_until(-1);
    serving_.assign(schedule_.gather_units.size(), -1);
    copies_.assign(schedule_.gather_units.size(), -1);
    bit_ = 1;
    for (int index = 0; index < schedule_.body; ++index) body_event(index);
    push(kCompute, {.action = Action::optimize});
    next_gather_ = 0;
    gathered_.clear();
    warm_ = publishes;
    for (int index = schedule_.body; publishes && index < schedule_.events; ++index) {
      if (trace_[at(index)].kind == EventKind::publish) publish(trace_[at(index)].parameter);
      passed_[schedule_.position_of(index)] = program_.lanes[0].size();
      gathers_until(schedule_.position_of(index));
    }
  }
  Program take() { return std::move(program_); }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }
  const Residency& residency(int item) const { return schedule_.residencies[at(item)]; }
  int push(int lane, Operation operation) {
    auto& operations = program_.lanes[at(lane)];
    operations.push_back(std::move(operation));
    return static_cast<int>(operations.size());
  }
  int domain_of(const Unit& unit) const { return sizes_[at(unit.front())].domain; }
  int gather_lane(int item) const {
    return lane_of(LaneKind::gather, domain_of(schedule_.gather_units[at(residency(item).unit)]));
  }
  void wait_for_compute(Operation& operation, int position) {
    if (const auto found = passed_.find(position); found != passed_.end())
      operation.waits.emplace_back(kCompute, static_cast<int>(found->second));
  }

  void body_event(int index) {
    const Event& event = trace_[at(index)];
    for (int item = 0; item < static_cast<int>(schedule_.reductions.size()); ++item)
      if (schedule_.reductions[at(item)].first == index) push(kCompute, {.action = Action::clear, .item = item});
    for (int item = 0; item < static_cast<int>(schedule_.residencies.size()); ++item)
      if (residency(item).wait == index) {
        Operation wait;
        if (gathered_.contains(item)) wait.waits.emplace_back(gather_lane(item), gathered_[item]);
        push(kCompute, wait);
        if (schedule_.unpacks(residency(item).unit)) {
          push(kCompute, {.action = Action::unpack, .item = item});
          push(kCompute, {.action = Action::unpacked, .item = item});
        }
        serving_[at(residency(item).unit)] = item;
      }
    for (int item = 0; item < static_cast<int>(schedule_.copies.size()); ++item)
      if (schedule_.copies[at(item)].make == index) copy(item);
    if (event.kind == EventKind::consume || event.kind == EventKind::release) {
      use(index);
      use_copy(index);
    }
    if (event.kind == EventKind::produce) produce(event);
    for (int item = 0; item < static_cast<int>(schedule_.residencies.size()); ++item)
      if (residency(item).wait == index && schedule_.unpacks(residency(item).unit))
        push(kCompute, {.action = Action::end_packed, .item = item});
    for (int item = 0; item < static_cast<int>(schedule_.residencies.size()); ++item)
      if (residency(item).last == index) push(kCompute, {.action = Action::end_weights, .item = item});
    for (int item = 0; item < static_cast<int>(schedule_.copies.size()); ++item)
      if (schedule_.copies[at(item)].last == index) push(kCompute, {.action = Action::end_copy, .item = item});
    passed_[index] = program_.lanes[0].size();
    for (int item = 0; item < static_cast<int>(schedule_.reductions.size()); ++item)
      if (schedule_.reductions[at(item)].issue == index) reduce(item);
    gathers_until(index);
    for (int item = 0; item < static_cast<int>(schedule_.reductions.size()); ++item)
      if (schedule_.reductions[at(item)].finish == index) finish(item);
  }

  void publish(int parameter) {
    push(kCompute, {.action = Action::update, .parameter = parameter});
    push(kCompute, {.action = Action::updated, .parameter = parameter, .version = ++versions_[at(parameter)]});
  }

  // Makes copies of the gathered weights that the unit uses now, or of the shards of weights that stay in place.
  void copy(int item) {
    const int unit = schedule_.copies[at(item)].unit;
    copies_[at(unit)] = item;
    if (!schedule_.stays_in_place(unit) && serving_[at(unit)] < 0)
      return void(push(kCompute, {.action = Action::fail, .why = "no weights to copy"}));
    push(kCompute, {.action = Action::copy, .item = item});
    push(kCompute, {.action = Action::copied, .item = item, .version = serving_[at(unit)]});
  }

  // Reads the newest copy of the step. A step does not know the copies of the step before.
  void use_copy(int index) {
    const Event& event = trace_[at(index)];
    if (sizes_[at(event.parameter)].columnwise == 0 || event.pass != Pass::backward) return;
    const int unit = unit_of(event.parameter);
    push(kCompute, {.action = Action::read_copy,
                    .item = unit < 0 ? -1 : copies_[at(unit)],
                    .parameter = event.parameter,
                    .version = versions_[at(event.parameter)]});
  }

  int unit_of(int parameter) const {
    const auto unit = std::ranges::find_if(schedule_.gather_units, [&](const Unit& members) {
      return std::ranges::find(members, parameter) != members.end();
    });
    return unit == schedule_.gather_units.end() ? -1 : static_cast<int>(unit - schedule_.gather_units.begin());
  }

  void use(int index) {
    const Event& event = trace_[at(index)];
    if (sizes_[at(event.parameter)].gathered + sizes_[at(event.parameter)].unpacked == 0) return;
    const bool is_consume = event.kind == EventKind::consume;
    const int unit = unit_of(event.parameter);
    const int serving = unit < 0 ? -1 : serving_[at(unit)];
    auto& held = held_[event.parameter];
    if (is_consume) {
      if (serving < 0 || residency(serving).last < index)
        push(kCompute, {.action = Action::fail, .why = to_string(event) + ": no weights"});
      held.push_back(serving);
    }
    if (held.empty()) return;
    push(kCompute, {.action = Action::read_weight,
                    .item = held.back(),
                    .parameter = event.parameter,
                    .version = versions_[at(event.parameter)]});
    if (!is_consume) held.pop_back();
  }

  void produce(const Event& event) {
    Operation operation{.action = Action::produce, .parameter = event.parameter, .version = static_cast<int>(bit_++)};
    for (int item = 0; item < static_cast<int>(schedule_.reductions.size()); ++item) {
      const Reduction& it = schedule_.reductions[at(item)];
      const Unit& members = schedule_.reduce_units[at(it.unit)];
      if (it.microbatch == event.microbatch && std::ranges::find(members, event.parameter) != members.end())
        operation.item = item;
    }
    if (operation.item >= 0) push(kCompute, operation);
  }

  void reduce(int item) {
    const Reduction& it = schedule_.reductions[at(item)];
    const int domain = domain_of(schedule_.reduce_units[at(it.unit)]);
    const int exchanges = lane_of(LaneKind::exchange, domain), sums = lane_of(LaneKind::sum, domain);
    const int dp = lane_of(LaneKind::dp, domain);
    Operation exchange{.action = Action::exchange, .item = item};
    wait_for_compute(exchange, it.issue);
    for (const int earlier : it.scratch_waits)
      if (added_.contains(earlier)) exchange.waits.push_back(added_[earlier]);
    const int exchanged = push(exchanges, exchange);
    push(sums, {.action = Action::read_grad, .item = item, .waits = {{exchanges, exchanged}}});
    summed_[item] = added_[item] = {sums, push(sums, {.action = Action::add, .item = item})};
    if (!it.replicas) return;
    push(dp, {.action = Action::read_sum, .item = item, .waits = {summed_[item]}});
    summed_[item] = {dp, push(dp, {.action = Action::sum_replicas, .item = item})};
  }

  void finish(int item) {
    Operation end{.action = Action::end_staging, .item = item};
    if (summed_.contains(item)) end.waits.push_back(summed_[item]);
    push(kCompute, end);
  }

  void gathers_until(int position) {
    for (; next_gather_ < schedule_.residencies.size() && schedule_.residencies[next_gather_].issue <= position;
         ++next_gather_) {
      const auto item = static_cast<int>(next_gather_);
      Operation fill{.action = Action::fill, .item = item};
      wait_for_compute(fill, residency(item).free);
      push(gather_lane(item), fill);
      gathered_[item] = push(gather_lane(item), {.action = Action::filled, .item = item});
    }
  }

  const Trace& trace_;
  const std::vector<ParameterSize>& sizes_;
  const Schedule& schedule_;
  Program program_;
  // Key: position; number of operations of compute before the newest event at this position.
  std::map<int, std::size_t> passed_;
  // Key: residency of this step; number of operations of the gather lane until its bytes have arrived.
  std::map<int, int> gathered_;
  // Key: reduction; lane and number of its addition (added_), and of its sum over replicas (summed_).
  std::map<int, std::pair<int, int>> added_, summed_;
  std::map<int, std::vector<int>> held_;  // key: parameter
  std::vector<int> serving_, copies_;     // index: unit
  std::vector<int> versions_;
  std::size_t next_gather_ = 0;
  std::uint64_t bit_ = 1;  // bit of the next produce event of the step
  bool warm_ = false;
};

}  // namespace

Program compile(const Trace& trace, const std::vector<ParameterSize>& sizes, const Schedule& schedule,
                const std::vector<bool>& publishes) {
  Compiler compiler(trace, sizes, schedule);
  for (const bool published : publishes) compiler.step(published);
  return compiler.take();
}

}  // namespace tessera::schedule::oracle
