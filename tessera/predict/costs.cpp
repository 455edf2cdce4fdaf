#include "tessera/predict/costs.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/predict/update_bytes.h"
#include "tessera/schedule/way_costs.h"

namespace tessera::predict {
namespace {

using ops::Work, ops::WorkKind;
using schedule::Event;
using schedule::EventKind;
using schedule::ParameterId;

// Ranks of a domain. Messages over the compute ranks, over the ranks that store a part, and over the ranks that add
// gradients of a part stay within `compute`, `stored` and `reduced` consecutive ranks. `adding` is the number of ranks
// that add gradients of a part.
struct DomainRanks {
  int compute = 1, stored = 1, reduced = 1;
  int adding = 1;
};

// Returns the largest number of compute groups of any replica.
int parts_of(const mesh::Mesh& mesh, const shard::Domain& domain) {
  if (!mesh.has_dead_places()) return mesh.size(domain.storage);
  std::size_t most = 0;
  for (const std::vector<int>& group : mesh.groups(domain.storage)) most = std::max(most, group.size());
  return static_cast<int>(most);
}

DomainRanks domain_ranks(const shard::RankLayout& layout, int domain) {
  const shard::Domain& axes = layout.domains[static_cast<std::size_t>(domain)];
  const mesh::Mesh& mesh = layout.mesh;
  const int compute = mesh.size(axes.compute), parts = parts_of(mesh, axes);
  const int adding = parts * mesh.size(axes.duplicates);
  return {.compute = compute, .stored = compute * parts, .reduced = compute * adding, .adding = adding};
}

// Returns the domain to which the group of an event belongs. Throws Error if no domain has the name.
std::vector<shard::Domain>::const_iterator domain_of(const shard::RankLayout& layout, const std::string& group) {
  const auto domain = std::ranges::find(layout.domains, group, [](const auto& it) { return program_name(it); });
  TESSERA_CHECK(domain != layout.domains.end(), "an event names the group '{}', which no domain has", group);
  return domain;
}

// Returns the number of ranks of a group that exchanges matrices (MatrixExchange), or 0 for another group.
std::int64_t ranks_of_matrices(const shard::RankLayout& layout, const std::string& group) {
  for (const mesh::Transfer transfer : {mesh::Transfer::matrices, mesh::Transfer::replica_matrices})
    if (group == name_of(transfer))
      return layout.mesh.size(role_of(layout.mesh, layout.domains.front(), transfer).axes);
  return 0;
}

// Computes the seconds of operators on one rank.
class Operators {
 public:
  explicit Operators(const CostInput& input) : input_(input) {
    const Machine& machine = input.machine;
    const auto flops = machine.flops.find(input.types.model);
    if (flops == machine.flops.end())
      throw InputError("machine '{}': flops of {} are missing", machine.name, name_of(input.types.model));
    const std::int64_t on_node = std::min<std::int64_t>(input.world_size(), machine.ranks_per_node);
    const double share = std::min(1.0, static_cast<double>(machine.processors) / static_cast<double>(on_node));
    flops_ = flops->second * share;
    fp8_flops_ = machine.fp8_flops > 0 ? machine.fp8_flops * share : flops_;
    memory_ = machine.memory_bytes_per_second * machine.memory_efficiency * share;
  }

  double seconds(const Work& work) const {
    return std::max(work.flops / rate(work), moves(work.bytes)) + input_.machine.operator_s;
  }
  double gradient_norm(const std::vector<PlannedParameter>& parameters, int microbatches) const {
    std::int64_t bytes = 0;
    for (const PlannedParameter& parameter : parameters)
      bytes += shard::bytes_of(parameter.squared_elements(microbatches), parameter.gradient_type(input_.types));
    return moves(bytes);
  }
  // Returns the seconds of products in the model's type.
  double product(double flops) const { return flops / (flops_ * input_.machine.gemm_efficiency); }
  double update(const PlannedParameter& parameter) const {
    return moves(
        update_bytes(input_.update.rule_of(parameter.size.name), {.count = parameter.state_elements,
                                                                  .types = input_.types,
                                                                  .gradient = parameter.gradient_type(input_.types),
                                                                  .splits_master = parameter.splits_master}));
  }
  // Reads a weight and writes its columnwise copy, which has about as many bytes.
  double columnwise_copy(std::int64_t bytes) const {
    return bytes == 0 ? 0 : seconds(ops::memory_work("transpose", 2 * bytes));
  }
  double ordered_sum(std::int64_t elements, int parts) const {
    return moves(ordered_sum_bytes(elements, parts, input_.types));
  }

 private:
  double moves(double moved) const { return moved / memory_; }
  double moves(std::int64_t moved) const { return moves(static_cast<double>(moved)); }
  double rate(const Work& work) const {
    switch (work.kind) {
      case WorkKind::attention_forward:
        return flops_ * input_.machine.attention_forward_efficiency;
      case WorkKind::attention_backward:
        return flops_ * input_.machine.attention_backward_efficiency;
      case WorkKind::product:
      case WorkKind::memory:
        break;
    }
    const bool is_fp8 = work.product.format == quant::Format::fp8 || work.product.format == quant::Format::fp8_block;
    return (is_fp8 ? fp8_flops_ : flops_) * input_.machine.gemm_efficiency;
  }

  const CostInput& input_;
  double flops_ = 0, fp8_flops_ = 0, memory_ = 0;
};

// Identifies an event within its microbatch.
auto key_of(const Event& event) {
  return std::tuple(event.kind, event.pass, event.parameter, event.ordinal, event.group, event.op);
}

// Assigns the work of the operators to the events of a trace.
class Placer {
 public:
  Placer(const CostInput& input, const DryStep& dry, const schedule::Trace& trace,
         const std::vector<PlannedParameter>& parameters)
      : input_(input), operators_(input), dry_(dry), trace_(trace), parameters_(parameters) {
    result.costs.segment_seconds.resize(trace.size());
    result.costs.comm_seconds.resize(trace.size());
    result.costs.comm_waits.resize(trace.size());
    result.work.resize(trace.size());
    result.costs.shared_link = input.machine.shared_link;
    result.costs.lanes = shard::lanes_of_hops(input.layout.mesh, input.layout.domains);
  }

  void place() {
    std::map<decltype(key_of(Event{})), std::size_t> places;  // index in the dry microbatch
    for (std::size_t i = 0; i < dry_.microbatch.size(); ++i) places.emplace(key_of(dry_.microbatch[i]), i);
    for (std::size_t at = 0; at < trace_.size(); ++at) {
      const Event& event = trace_[at];
      if (event.kind == EventKind::comm) result.costs.comm_seconds[at] = collective(event);
      if (is_handover(event)) result.costs.segment_seconds[at] += input_.machine.handover_s;
      result.costs.comm_waits[at] = static_cast<int>(at);
      // Assigns the work after the last event of a microbatch.
      if (at > 0 && trace_[at - 1].microbatch >= 0 && trace_[at - 1].microbatch != event.microbatch)
        compute(at, dry_.work.size() - 1);
      const auto place = places.find(key_of(event));
      if (event.microbatch < 0 || place == places.end()) continue;
      compute(at, place->second);
      const auto last = at + static_cast<std::size_t>(dry_.waits[place->second]) - place->second;
      if (last < trace_.size() && trace_[last].microbatch == event.microbatch)
        result.costs.comm_waits[at] = static_cast<int>(last);
    }
    update();
    if (input_.world_size() > 1) result.costs.end_seconds = wait_for_slowest();
  }

  StepCosts result;

 private:
  // A product is named after the weight of the preceding event: the consume event of the weight, or the release event
  // of the weight before wgrad. If a collective was issued in between, the weight is that of the next event.
  ParameterId weight_of_product(std::size_t in_microbatch) const {
    const auto parameter = [&](std::size_t event) {
      return event < dry_.microbatch.size() ? dry_.microbatch[event].parameter : schedule::kNoParameter;
    };
    if (in_microbatch == 0) return schedule::kNoParameter;
    const ParameterId before = parameter(in_microbatch - 1);
    return before == schedule::kNoParameter ? parameter(in_microbatch) : before;
  }

  void compute(std::size_t at, std::size_t in_microbatch) {
    for (const Work& work : dry_.work[in_microbatch]) {
      const bool is_product = work.kind == WorkKind::product;
      const ParameterId id = is_product ? weight_of_product(in_microbatch) : schedule::kNoParameter;
      double seconds = operators_.seconds(work);
      if (id >= 0 && parameters_[static_cast<std::size_t>(id)].size.domain == nn::kExpertDomain)
        result.expert_products += seconds *= input_.expert_load;
      add(at, seconds,
          id < 0 ? work.name : std::string(work.name) + " " + parameters_[static_cast<std::size_t>(id)].size.name);
    }
  }

  // A bucket is updated before the all-reduce of its amaxes.
  void update() {
    bool published = false;
    int microbatches = 0;
    for (const Event& event : trace_) microbatches = std::max(microbatches, event.microbatch + 1);
    std::size_t amaxes = 0;  // event of the last all-reduce of amaxes; 0: no event so far
    for (std::size_t at = 0; at < trace_.size(); ++at) {
      const Event& event = trace_[at];
      if (event.kind == EventKind::comm && event.group == schedule::kCastGroup && event.op == schedule::kAmaxOp)
        amaxes = at;
      if (event.kind != EventKind::publish) continue;
      const std::size_t updated = amaxes > 0 ? amaxes : at;
      if (!published) add(updated, operators_.gradient_norm(parameters_, microbatches), "gradient norm");
      published = true;
      const PlannedParameter& parameter = parameters_[static_cast<std::size_t>(event.parameter)];
      if (parameter.state_elements == 0) continue;  // a backward weight has no state
      add(updated, operators_.update(parameter), "update " + parameter.size.name);
    }
    iterate();
  }

  // Adds the computation with whole matrices before their scatters. Without other ranks there are no scatters; the
  // computation then precedes the first publish event.
  void iterate() {
    auto flops = dry_.matrix_flops.begin();
    std::size_t first_publish = trace_.size();
    for (std::size_t at = 0; at < trace_.size(); ++at) {
      if (trace_[at].kind == EventKind::publish) first_publish = std::min(first_publish, at);
      if (trace_[at].kind == EventKind::comm && trace_[at].op == schedule::kScatterMatricesOp)
        add(at, operators_.product(*flops++), "matrices");
    }
    for (; flops != dry_.matrix_flops.end() && first_publish < trace_.size(); ++flops)
      add(first_publish, operators_.product(*flops), "matrices");
  }

  // Returns whether compute hands over a weight or a gradient at this event: to a transfer or from a transfer.
  bool is_handover(const Event& event) const {
    if (event.parameter < 0) return false;
    const schedule::ParameterSize& size = parameters_[static_cast<std::size_t>(event.parameter)].size;
    switch (event.kind) {
      case EventKind::consume:
        return total_bytes(size.gather) + total_bytes(size.publish) > 0;
      case EventKind::release:
        return total_bytes(size.gather) > 0;
      case EventKind::produce:
        return total_bytes(size.reduce) + total_bytes(size.replicas) > 0;
      default:
        return false;
    }
  }

  double wait_for_slowest() const {
    const std::vector<double>& segments = result.costs.segment_seconds;
    return input_.machine.rank_spread * std::accumulate(segments.begin(), segments.end(), 0.0);
  }

  // Returns the number of ranks in this rank's group with this name. The group may have fewer ranks than places.
  std::int64_t ranks_of(const std::string& group) const {
    if (group == schedule::kCastGroup) return input_.world_size();
    if (const std::int64_t ranks = ranks_of_matrices(input_.layout, group)) return ranks;
    const auto domain = domain_of(input_.layout, group) - input_.layout.domains.begin();
    return dry_.compute_ranks[static_cast<std::size_t>(domain)];
  }

  double collective(const Event& event) const {
    if (schedule::reads_rows(event)) {  // an exchange of rows has two messages: the indices, then the rows
      const int domain = parameters_[static_cast<std::size_t>(event.parameter)].size.domain;
      const MachineLink& link = input_.machine.link(domain_ranks(input_.layout, domain).stored);
      return 2 * link.latency_s + static_cast<double>(event.bytes) / link.bytes_per_second;
    }
    const std::int64_t ranks = ranks_of(event.group);
    if (ranks == 1 || (schedule::is_piece_op(event.op) && event.bytes == 0)) return 0;
    // Pieces are pushed like weights.
    const bool is_piece = schedule::is_piece_op(event.op);
    const MachineLink& link = is_piece ? input_.machine.link(ranks) : input_.machine.collective_link(ranks);
    if (schedule::is_of_matrices(event))
      return link.latency_s + static_cast<double>(event.bytes) / link.bytes_per_second;
    const auto all = static_cast<double>(ranks);
    const double others = all - 1, given = static_cast<double>(event.bytes);
    const double received = is_piece ? given : event.op == "all_gather" ? others * given : others / all * given;
    return link.latency_s + (event.op.starts_with("all_reduce") ? 2 : 1) * received / link.bytes_per_second;
  }

  void add(std::size_t at, double seconds, const std::string& what) {
    result.costs.segment_seconds[at] += seconds;
    std::string& work = result.work[at];
    if (!work.ends_with(what)) work += (work.empty() ? "" : " + ") + what;
  }

  const CostInput& input_;
  Operators operators_;
  const DryStep& dry_;
  const schedule::Trace& trace_;
  const std::vector<PlannedParameter>& parameters_;
};

double seconds_of(const MachineLink& link, double received) {
  return received == 0 ? 0 : link.latency_s + received / link.bytes_per_second;
}

}  // namespace

int ranks_of_group(const shard::RankLayout& layout, const std::string& group) {
  if (group == schedule::kCastGroup) return layout.mesh.world_size();
  if (const std::int64_t ranks = ranks_of_matrices(layout, group)) return static_cast<int>(ranks);
  return layout.mesh.size(domain_of(layout, group)->compute);
}

void raise(StepCosts& costs, const StepCosts& other) {
  const auto raise_each = [](std::vector<double>& seconds, const std::vector<double>& more) {
    TESSERA_CHECK(seconds.size() == more.size(), "steps of {} and {} events", seconds.size(), more.size());
    for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] = std::max(seconds[i], more[i]);
  };
  raise_each(costs.costs.segment_seconds, other.costs.segment_seconds);
  raise_each(costs.costs.comm_seconds, other.costs.comm_seconds);
  costs.costs.end_seconds = std::max(costs.costs.end_seconds, other.costs.end_seconds);
}

StepCosts event_costs(const CostInput& input, const DryStep& dry, const schedule::Trace& trace,
                      const std::vector<PlannedParameter>& parameters) {
  Placer placer(input, dry, trace, parameters);
  placer.place();
  return std::move(placer.result);
}

void set_transfer_costs(const CostInput& input, const schedule::Trace& trace,
                        const std::vector<PlannedParameter>& parameters, const schedule::Schedule& schedule,
                        schedule::Costs& costs) {
  std::vector<schedule::ParameterSize> sizes;
  for (const PlannedParameter& parameter : parameters) sizes.push_back(parameter.size);
  const MachineLink& outer = input.machine.link(input.world_size());
  std::vector<DomainRanks> by_domain;
  for (std::size_t domain = 0; domain < input.layout.domains.size(); ++domain)
    by_domain.push_back(domain_ranks(input.layout, static_cast<int>(domain)));
  const auto link_of = [&](int domain, mesh::Transfer hop) -> const MachineLink& {
    const DomainRanks& ranks = by_domain[static_cast<std::size_t>(domain)];
    if (hop == mesh::Transfer::gather) return input.machine.link(ranks.stored);
    if (hop == mesh::Transfer::reduce) return input.machine.link(ranks.reduced);
    return lane_of(hop) == mesh::Transfer::replicas ? outer : input.machine.link(ranks.compute);
  };
  set_way_costs(
      trace, sizes, schedule,
      [&](int domain, mesh::Transfer hop, std::int64_t bytes) {
        return seconds_of(link_of(domain, hop), static_cast<double>(bytes));
      },
      costs);
}

void set_unit_costs(const CostInput& input, const schedule::Trace& trace,
                    const std::vector<PlannedParameter>& parameters, const schedule::Schedule& schedule,
                    schedule::Costs& costs) {
  set_transfer_costs(input, trace, parameters, schedule, costs);
  const Operators operators(input);
  costs.copy_seconds.clear();
  for (const schedule::Unit& unit : schedule.gather_units) {
    std::int64_t bytes = 0;
    for (const ParameterId id : unit) bytes += parameters[static_cast<std::size_t>(id)].size.columnwise;
    costs.copy_seconds.push_back(operators.columnwise_copy(bytes));
  }
  std::vector<int> adding;  // by domain
  for (std::size_t domain = 0; domain < input.layout.domains.size(); ++domain)
    adding.push_back(domain_ranks(input.layout, static_cast<int>(domain)).adding);
  for (std::size_t unit = 0; unit < schedule.reduce_units.size(); ++unit) {
    std::int64_t shards = 0;
    for (const ParameterId id : schedule.reduce_units[unit])
      shards += parameters[static_cast<std::size_t>(id)].summed_elements();
    const int domain = schedule.reduce_domains[unit];
    costs.seconds[mesh::Transfer::reduce][unit] +=
        operators.ordered_sum(shards, adding[static_cast<std::size_t>(domain)]);
  }
}

double columnwise_seconds(const CostInput& input, const std::vector<PlannedParameter>& parameters) {
  const Operators operators(input);
  double seconds = 0;
  for (const PlannedParameter& parameter : parameters) seconds += operators.columnwise_copy(parameter.size.columnwise);
  return seconds;
}

}  // namespace tessera::predict
