#include "tessera/settings/resolve.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/data/held_out.h"
#include "tessera/settings/places.h"
#include "tessera/settings/resolve/expert_checks.h"
#include "tessera/settings/resolve/formats.h"
#include "tessera/settings/resolve/graph_checks.h"
#include "tessera/settings/resolve/run_limits.h"
#include "tessera/settings/resolve/tp_tokens.h"
#include "tessera/settings/resolve/update_rules.h"
#include "tessera/settings/run_mesh.h"
#include "tessera/settings/text/values.h"

namespace tessera::settings {
namespace {

void require_given(const TrainConfig& config) {
  if (config.model.empty())
    throw InputError("--model is missing: expected a name under configs/ or a config.json (or --init FOLDER)");
  if (config.data.empty()) throw InputError("--data is missing: expected the prefix of PREFIX.bin and PREFIX.idx");
  if (config.steps < 0) throw InputError("--steps is missing: expected the number of steps to train");
  if (config.out.empty()) throw InputError("--out is missing: expected the folder of the run");
}

void check_types(const TrainConfig& config) {
  const quant::DType wire = *config.grad_wire;
  if ((config.dtype == quant::DType::fp64) != (wire == quant::DType::fp64))
    throw InputError("--grad-wire: got {} with --dtype {}, expected {}", name_of(wire), name_of(config.dtype),
                     config.dtype == quant::DType::fp64 ? "fp64" : "fp32 or bf16");
  if (config.moments == Moments::bf16 && config.dtype == quant::DType::fp64)
    throw InputError("--moments: got bf16 with --dtype fp64, expected fp32, or --dtype fp32 or bf16");
}

void check_rates(const TrainConfig& config) {
  const train::LrSchedule& rates = config.rates;
  const train::LrSchedule defaults;
  if (rates.shape != train::RateShape::constant && rates.min_lr > rates.lr)
    throw InputError("--min-lr: got {}, expected at most --lr {}", rates.min_lr, rates.lr);
  if (rates.schedule_steps > 0 && rates.warmup_steps > rates.schedule_steps)
    throw InputError("--warmup-steps: got {}, expected at most --schedule-steps {} (default: --steps)",
                     rates.warmup_steps, rates.schedule_steps);
  if (rates.shape != train::RateShape::wsd) {
    if (rates.decay_steps != defaults.decay_steps)
      throw InputError("--decay-steps: got {}, expected it with --lr-schedule wsd", rates.decay_steps);
    if (rates.decay_shape != defaults.decay_shape)
      throw InputError("--decay-shape: got {}, expected it with --lr-schedule wsd", word_of(rates.decay_shape));
  } else if (rates.decay_steps == 0) {
    throw InputError("--lr-schedule: got wsd without --decay-steps, expected the number of steps of the decay");
  } else if (rates.schedule_steps > 0 && rates.decay_steps > rates.schedule_steps - rates.warmup_steps) {
    throw InputError(
        "--decay-steps: got {}, expected at most {}: --schedule-steps {} (default: --steps) less --warmup-steps {}",
        rates.decay_steps, rates.schedule_steps - rates.warmup_steps, rates.schedule_steps, rates.warmup_steps);
  }
}

void check_dependants(const TrainConfig& config) {
  data::parse_held_out(config.valid, "--valid");
  const auto require_valid = [&](std::string_view flag, std::int64_t value, const std::string& got) {
    if (value > 0 && config.valid.empty())
      throw InputError("{}: got {} without --valid, expected held-out data to evaluate on", flag, got);
  };
  require_valid("--eval-every", config.eval_every, std::to_string(config.eval_every));
  require_valid("--eval-samples", config.eval_samples, std::to_string(config.eval_samples));
  require_valid("--eval-first", config.eval_first ? 1 : 0, "on");
  if (config.trace_step > config.steps)
    throw InputError("--trace-step: got {}, expected at most --steps {}", config.trace_step, config.steps);
  const std::map<std::int64_t, int>& suppressed = config.debug_suppress.value;
  if (!suppressed.empty() && suppressed.rbegin()->first > config.steps)
    throw InputError("--debug-suppress: got step {}, expected at most --steps {}", suppressed.rbegin()->first,
                     config.steps);
}

// Throws InputError for settings that a tp group with fewer ranks than --tp does not support.
void check_reduced_groups(const TrainConfig& config) {
  const PlaceMap unused = inactive_slots(config.mesh);
  const auto reduced = std::ranges::find_if(
      unused, [&](const auto& group) { return static_cast<std::int64_t>(group.second.size()) < config.mesh.tp; });
  if (reduced == unused.end()) return;
  const std::string place = to_text(reduced->first, reduced->second.front());
  const shard::FormatPolicies policies = policies_of(config.formats);
  for (const auto format : {quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4})
    for (const auto& [flag, policy] : {std::pair{"--wire-format", policies.wire},
                                       {"--wire-format-backward", policies.wire_backward},
                                       {"--gemm-format", policies.products}})
      if (has_format(policy, format))
        throw InputError(
            "{}: got {} with place {} unused (--dead, --idle), expected bf16 or fp8: the parts of a smaller tp group "
            "have other tiles of this format",
            flag, name_of(format), place);
  if (config.embedding == Lookup::rows)
    throw InputError("--embedding: got rows with place {} unused (--dead, --idle), expected auto or gather", place);
}

}  // namespace

TrainConfig resolve_settings(TrainConfig config) {
  require_given(config);
  if (config.mesh.tp > 1) config.sequence_parallel = splits_tokens(config);
  if (config.rates.schedule_steps < 0) config.rates.schedule_steps = config.steps;
  if (!config.grad_wire) config.grad_wire = config.dtype;
  check_types(config);
  check_muon(config);
  check_rates(config);
  check_dependants(config);
  check_graph(config);
  check_tp_tokens(config);
  return config;
}

TrainConfig resolve_model(TrainConfig config, const models::ModelConfig& model) {
  const models::ModelSizes sizes = model.sizes();
  if (config.seq_len == 0) config.seq_len = sizes.max_position_embeddings;
  if (config.seq_len > sizes.max_position_embeddings)
    throw InputError("--seq-len: got {}, expected at most {} (max_position_embeddings of model '{}')", config.seq_len,
                     sizes.max_position_embeddings, config.model);
  check_microbatch_limits(config, sizes);
  if (config.embedding == Lookup::rows && sizes.has_tied_embeddings)
    throw InputError("--embedding: got rows, expected auto or gather: model '{}' uses its table as output layer too",
                     config.model);
  if (sizes.num_experts > 0 && config.mesh.has_unused_places())
    throw InputError("{}: model '{}' has experts, which need a whole mesh in this version",
                     unused_flag(config.mesh.unused), config.model);
  check_experts(config, sizes);
  if (config.mesh.has_unused_places()) check_reduced_groups(config);
  if (config.expert_bias_rate < 0) config.expert_bias_rate = sizes.has_router_bias ? 0.001 : 0.0;
  check_formats(config, model);
  check_update_rules(config, model);
  complete_recipe(config.formats);
  return config;
}

std::vector<std::string> warnings_of(const TrainConfig& config) {
  std::vector<std::string> lines;
  if (config.rates.shape != train::RateShape::constant && config.steps > config.rates.schedule_steps &&
      config.rates.schedule_steps > 0)
    lines.push_back(
        fmt::format("the rate schedule ends at step {} (--schedule-steps); from there to step {} the rate is "
                    "--min-lr {}",
                    config.rates.schedule_steps, config.steps, config.rates.min_lr));
  if (config.threads > 1 && config.backend != Backend::nccl)
    lines.push_back(fmt::format("--threads {}: results are comparable only at the same thread count", config.threads));
  return lines;
}

}  // namespace tessera::settings
