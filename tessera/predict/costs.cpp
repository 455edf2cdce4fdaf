#include "tessera/predict/costs.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/models/decoder_layouts.h"
#include "tessera/models/decoder_parameters.h"
#include "tessera/schedule/way_costs.h"

namespace tessera::predict {
namespace {

using schedule::Event;
using schedule::EventKind;
using schedule::ParameterId;
using schedule::Pass;

enum class Role : std::uint8_t { embedding, norm, qkv, attention_output, gate_up, down, output };

double element_bytes(quant::DType type) {
  return static_cast<double>(quant::size_of(type));
}

// Seconds of operators on one rank.
class Operators {
 public:
  explicit Operators(const CostInput& input) : input_(input) {
    const Machine& machine = input.machine;
    const auto flops = machine.flops.find(input.types.model);
    if (flops == machine.flops.end())
      throw InputError("machine '{}': flops of {} are not given", machine.name, name_of(input.types.model));
    const std::int64_t on_node = std::min<std::int64_t>(input.mesh.ranks(), machine.ranks_per_node);
    const double share = std::min(1.0, static_cast<double>(machine.processors) / static_cast<double>(on_node));
    flops_ = flops->second * share;
    fp8_flops_ = machine.fp8_flops > 0 ? machine.fp8_flops * share : flops_;
    memory_ = machine.memory_bytes_per_second * share;
    const models::HeadPart heads =
        models::head_part(input.model, models::even_parts(input.model, input.mesh.tp).heads.back());
    tokens_ = static_cast<double>(input.sequences * input.seq_len);
    own_tokens_ = input.sequence_parallel ? tokens_ / input.mesh.tp : tokens_;
    query_ = static_cast<double>(heads.q_heads() * input.model.head_dim);
    stacked_ = query_ + 2.0 * static_cast<double>(heads.kv_heads * input.model.head_dim);
    ffn_ = part(input.model.intermediate_size);
    vocabulary_ = part(input.model.vocab_size);
    hidden_ = static_cast<double>(input.model.hidden_size);
  }

  double moves(double moved) const { return moved / memory_; }
  // tokens x weight, one of three products: 2 m n k flops.
  double gemm(double elements, quant::Format format) const {
    const double touched = elements + tokens_ * (hidden_ + elements / hidden_);
    const bool is_fp8 = format == quant::Format::fp8 || format == quant::Format::fp8_block;
    return std::max(2 * tokens_ * elements / ((is_fp8 ? fp8_flops_ : flops_) * input_.machine.gemm_efficiency),
                    moves(touched * element_bytes(input_.types.model)));
  }
  double norm() const { return moves(4 * own_tokens_ * hidden_ * model()); }
  double norm_again() const { return moves(2 * own_tokens_ * hidden_ * model()); }
  double swiglu() const { return moves(3 * tokens_ * ffn_ * model()); }
  double swiglu_backward(bool again) const { return moves((again ? 6 : 5) * tokens_ * ffn_ * model()); }
  double loss() const { return moves(4 * tokens_ * vocabulary_ * model()); }
  double tokens() const { return tokens_; }
  double vocabulary() const { return vocabulary_; }
  double embedding() const { return moves(2 * tokens_ * hidden_ * model()); }
  // written: rows of the gradient, which begins as zeros.
  double embedding_backward(double written) const {
    return moves(written * hidden_ * accumulator() + tokens_ * hidden_ * (model() + 2 * accumulator()));
  }
  // Causal: half of two seq_len x seq_len x head_dim products a head; backward has five of them.
  double attention() const { return causal_flops() / (flops_ * input_.machine.attention_forward_efficiency) + rope(); }
  double attention_backward() const {
    return 2.5 * causal_flops() / (flops_ * input_.machine.attention_backward_efficiency) + rope();
  }
  double gradient_norm(double elements) const { return moves(elements * accumulator()); }
  // Reads and writes master and both moments, reads the gradient, writes the weight where it is another buffer.
  double adamw(double elements) const { return moves(elements * (7 * accumulator() + (has_master() ? model() : 0))); }
  // The owner's sum of all ranks' parts.
  double ordered_sum(double shard) const {
    return moves(shard * (input_.mesh.gtp * element_bytes(input_.types.wire) + 2 * accumulator()));
  }

 private:
  double part(std::int64_t n) const {
    return static_cast<double>(layout::even_part(n, input_.mesh.tp - 1, input_.mesh.tp).size());
  }
  double model() const { return element_bytes(input_.types.model); }
  double accumulator() const { return element_bytes(input_.types.accumulator); }
  bool has_master() const { return input_.types.model != input_.types.accumulator; }
  double causal_flops() const { return 2 * tokens_ * static_cast<double>(input_.seq_len) * query_; }
  double rope() const { return moves(2 * tokens_ * stacked_ * model()); }

  const CostInput& input_;
  double flops_ = 0, fp8_flops_ = 0, memory_ = 0;
  double tokens_ = 0, own_tokens_ = 0, query_ = 0, stacked_ = 0, ffn_ = 0, vocabulary_ = 0, hidden_ = 0;
};

// Puts the operators between the events.
class Placer {
 public:
  Placer(const CostInput& input, const schedule::Trace& trace, const std::vector<PlannedParameter>& parameters)
      : input_(input),
        operators_(input),
        trace_(trace),
        parameters_(parameters),
        ids_(models::decoder_ids(input.model)) {
    roles_.resize(parameters.size(), Role::norm);
    role(ids_.output) = Role::output;
    role(ids_.embedding) = Role::embedding;
    policies_.resize(parameters.size(), nn::Recompute::none);
    for (std::size_t i = 0; i < ids_.blocks.size(); ++i) {
      const models::DecoderBlockIds& block = ids_.blocks[i];
      for (const ParameterId id :
           {block.attention_norm, block.qkv, block.attention_output, block.mlp_norm, block.gate_up, block.down})
        policies_[static_cast<std::size_t>(id)] = input.recompute.of(i);
      role(block.qkv) = Role::qkv;
      role(block.attention_output) = Role::attention_output;
      role(block.gate_up) = Role::gate_up;
      role(block.down) = Role::down;
    }
    result.costs.segment_seconds.resize(trace.size());
    result.costs.comm_seconds.resize(trace.size());
    result.work.resize(trace.size());
    result.costs.shared_link = input.machine.shared_link;
  }

  void place() {
    bool published = false;
    std::size_t amaxes = 0;  // of the newest bucket that takes any, 0: none so far
    for (std::size_t at = 0; at < trace_.size(); ++at) {
      const Event& event = trace_[at];
      if (event.kind == EventKind::comm && event.group == schedule::kCastGroup) amaxes = at;
      if (event.kind == EventKind::consume) consume(at, event);
      if (event.kind == EventKind::produce) produce(at, event);
      if (event.kind == EventKind::comm) result.costs.comm_seconds[at] = collective(event);
      if (event.kind == EventKind::comm && event.parameter >= 0) consume(at, event);  // the lookup
      if (event.kind != EventKind::publish) continue;
      // A bucket is updated before its amaxes are taken.
      const std::size_t updated = amaxes > 0 ? amaxes : at;
      if (!published) add(updated, operators_.gradient_norm(all_shards()), "gradient norm");
      published = true;
      const PlannedParameter& parameter = parameters_[static_cast<std::size_t>(event.parameter)];
      add(updated, operators_.adamw(static_cast<double>(parameter.state_elements)), "adamw " + parameter.size.name);
    }
  }

  StepCosts result;

 private:
  bool is_selective(const Event& event) const {
    return policies_[static_cast<std::size_t>(event.parameter)] == nn::Recompute::selective;
  }
  Role& role(ParameterId id) { return roles_[static_cast<std::size_t>(id)]; }

  // A tied table is the embedding at its first consume of a microbatch and at its last produce, else the output layer.
  Role role_at(const Event& event) {
    const Role role = this->role(event.parameter);
    if (role != Role::embedding || ids_.output != ids_.embedding) return role;
    const bool embeds =
        event.kind == EventKind::produce ? event.ordinal == 1 : event.pass == Pass::forward && event.ordinal == 0;
    return embeds ? Role::embedding : Role::output;
  }

  double gemm(const Event& event) const {
    const PlannedParameter& parameter = parameters_[static_cast<std::size_t>(event.parameter)];
    return operators_.gemm(static_cast<double>(parameter.compute_elements), parameter.product);
  }

  void consume(std::size_t at, const Event& event) {
    const bool backward = event.pass == Pass::backward;
    const Role role = role_at(event);
    const std::string& name = parameters_[static_cast<std::size_t>(event.parameter)].size.name;
    if (role == Role::embedding) return add(at + 1, operators_.embedding(), "lookup " + name);
    if (role == Role::norm) {
      const bool again = event.pass == Pass::recompute && is_selective(event);
      return add(at + 1, again ? operators_.norm_again() : operators_.norm(), "norm " + name);
    }
    add(at + 1, gemm(event), (backward ? "dgrad " : "fprop ") + name);
    if (role == Role::output && !backward) add(at + 1, operators_.loss(), "loss");
    if (role == Role::down && !backward) add(at, operators_.swiglu(), "swiglu");
    if (role == Role::qkv && backward) add(at, operators_.attention_backward(), "attention backward");
    if (role == Role::qkv && !backward) add(at + 2, operators_.attention(), "attention");
  }

  void produce(std::size_t at, const Event& event) {
    const Role role = role_at(event);
    const std::string& name = parameters_[static_cast<std::size_t>(event.parameter)].size.name;
    if (role == Role::norm) return;  // in its consume
    if (role == Role::embedding) {
      const bool by_rows = parameters_[static_cast<std::size_t>(event.parameter)].row_buffers > 0;
      const double written = by_rows ? operators_.tokens() : operators_.vocabulary();
      return add(at, operators_.embedding_backward(written), "gradient " + name);
    }
    if (role == Role::down) {
      const bool again = is_selective(event);
      add(at + (again ? 0 : 1), operators_.swiglu_backward(again), "swiglu backward");
    }
    add(at, gemm(event), "wgrad " + name);
  }

  double collective(const Event& event) const {
    if (event.parameter >= 0) {  // indices, then rows
      const MachineLink& link = input_.machine.link(static_cast<std::int64_t>(input_.mesh.tp) * input_.mesh.gtp);
      return 2 * link.latency_s + static_cast<double>(event.bytes) / link.bytes_per_second;
    }
    const std::int64_t ranks = event.group == schedule::kCastGroup ? input_.mesh.ranks() : input_.mesh.tp;
    const MachineLink& link = input_.machine.link(ranks);
    const auto all = static_cast<double>(ranks);
    const double others = all - 1, given = static_cast<double>(event.bytes);
    const double received = event.op == "all_gather" ? others * given : others / all * given;
    return link.latency_s + (event.op.starts_with("all_reduce") ? 2 : 1) * received / link.bytes_per_second;
  }

  double all_shards() const {
    double elements = 0;
    for (const PlannedParameter& parameter : parameters_) elements += static_cast<double>(parameter.state_elements);
    return elements;
  }

  void add(std::size_t at, double seconds, const std::string& what) {
    at = std::min(at, trace_.size() - 1);  // a recorded trace may end anywhere
    result.costs.segment_seconds[at] += seconds;
    std::string& work = result.work[at];
    work += (work.empty() ? "" : " + ") + what;
  }

  const CostInput& input_;
  Operators operators_;
  const schedule::Trace& trace_;
  const std::vector<PlannedParameter>& parameters_;
  models::DecoderIds ids_;
  std::vector<Role> roles_;
  std::vector<nn::Recompute> policies_;  // by parameter, of its block
};

double seconds_of(const MachineLink& link, double received) {
  return received == 0 ? 0 : link.latency_s + received / link.bytes_per_second;
}

}  // namespace

StepCosts event_costs(const CostInput& input, const schedule::Trace& trace,
                      const std::vector<PlannedParameter>& parameters) {
  Placer placer(input, trace, parameters);
  placer.place();
  return std::move(placer.result);
}

void set_unit_costs(const CostInput& input, const schedule::Trace& trace,
                    const std::vector<PlannedParameter>& parameters, const schedule::Schedule& schedule,
                    schedule::Costs& costs) {
  std::vector<schedule::ParameterSize> sizes;
  for (const PlannedParameter& parameter : parameters) sizes.push_back(parameter.size);
  const std::int64_t replica = static_cast<std::int64_t>(input.mesh.tp) * input.mesh.gtp;
  const MachineLink& inner = input.machine.link(replica);
  const MachineLink& outer = input.machine.link(input.mesh.ranks());
  const MachineLink& tp = input.machine.link(input.mesh.tp);
  const auto link_of = [&](schedule::Activity activity) -> const MachineLink& {
    if (activity == schedule::Activity::gather || activity == schedule::Activity::reduce) return inner;
    return activity == schedule::Activity::replicas || activity == schedule::Activity::publish ? outer : tp;
  };
  set_way_costs(
      trace, sizes, schedule,
      [&](schedule::Activity activity, std::int64_t bytes) {
        return seconds_of(link_of(activity), static_cast<double>(bytes));
      },
      costs);
  const Operators operators(input);
  for (std::size_t unit = 0; unit < schedule.reduce_units.size(); ++unit) {
    const std::int64_t read = input.sequences * input.seq_len * input.model.hidden_size;  // elements of rows, at most
    double shards = 0;
    for (const ParameterId id : schedule.reduce_units[unit]) {
      const PlannedParameter& p = parameters[static_cast<std::size_t>(id)];
      shards += static_cast<double>(p.row_buffers > 0 ? std::min(p.shard_elements, read) : p.shard_elements);
    }
    costs.reduce_seconds[unit] += operators.ordered_sum(shards);
  }
}

}  // namespace tessera::predict
