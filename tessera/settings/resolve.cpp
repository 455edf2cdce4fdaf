#include "tessera/settings/resolve.h"

#include <algorithm>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/quant/formats/product_kernel.h"
#include "tessera/settings/checks/expert_checks.h"
#include "tessera/settings/checks/format_checks.h"
#include "tessera/settings/checks/run_limits.h"
#include "tessera/settings/checks/tp_tokens.h"
#include "tessera/settings/places.h"
#include "tessera/settings/run_mesh.h"
#include "tessera/settings/settings.h"

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
}

void check_rates(const TrainConfig& config) {
  if (config.rates.shape == train::RateShape::cosine && config.rates.min_lr > config.rates.lr)
    throw InputError("--min-lr: got {}, expected at most --lr {}", config.rates.min_lr, config.rates.lr);
  if (config.rates.schedule_steps > 0 && config.rates.warmup_steps > config.rates.schedule_steps)
    throw InputError("--warmup-steps: got {}, expected at most --schedule-steps {} (default: --steps)",
                     config.rates.warmup_steps, config.rates.schedule_steps);
}

void check_dependants(const TrainConfig& config) {
  if (config.eval_every > 0 && config.valid.empty())
    throw InputError("--eval-every: got {} without --valid, expected held-out data to evaluate on", config.eval_every);
  if (config.trace_step > config.steps)
    throw InputError("--trace-step: got {}, expected at most --steps {}", config.trace_step, config.steps);
  const std::map<std::int64_t, int>& suppressed = config.debug_suppress.value;
  if (!suppressed.empty() && suppressed.rbegin()->first > config.steps)
    throw InputError("--debug-suppress: got step {}, expected at most --steps {}", suppressed.rbegin()->first,
                     config.steps);
}

// Throws InputError, which names the setting, if a policy uses a format with scales and --dtype is not bf16.
void check_dtype(const TrainConfig& config, const shard::FormatPolicy& policy, std::string_view format,
                 std::string_view rules) {
  const auto other = std::ranges::find_if(
      policy.rules, [](const shard::FormatRule& rule) { return rule.format != quant::Format::bf16; });
  const quant::Format requested = other == policy.rules.end() ? policy.format : other->format;
  if (config.dtype != quant::DType::bf16 && requested != quant::Format::bf16)
    throw InputError("{}: got {} with --dtype {}, expected it with --dtype bf16",
                     other == policy.rules.end() ? format : rules, name_of(requested), name_of(config.dtype));
}

bool has_format(const shard::FormatPolicy& policy, quant::Format format) {
  return policy.format == format ||
         std::ranges::any_of(policy.rules, [&](const shard::FormatRule& rule) { return rule.format == format; });
}

// Throws InputError if --gemm-kernels native is given and a product would be decoded.
void check_kernels(const TrainConfig& config, const shard::FormatPolicy& policy) {
  if (config.gemm_kernels != GemmKernels::native) return;
  const bool is_gpu = config.backend == Backend::nccl;
  for (const quant::Format format :
       {quant::Format::fp8, quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4})
    if (has_format(policy, format) && quant::kernel_of(format, is_gpu) == quant::ProductKernel::decoded)
      throw InputError(
          "--gemm-kernels: got native with products in {}, which --backend {} multiplies as decoded values; expected "
          "auto, or products in {}",
          name_of(format), name_of(config.backend), is_gpu ? "bf16, fp8 or fp8_block" : "bf16");
}

void check_products(const TrainConfig& config, const shard::FormatPolicy& policy) {
  check_kernels(config, policy);
  const bool has_fp8 = has_format(policy, quant::Format::fp8);
  // The stored settings of a run contain all settings. Therefore only a value that differs from the default counts as
  // given.
  const TrainConfig defaults;
  for (const Setting& setting : settings()) {
    if (!setting.is_of_fp8_products() || value_of(config, setting) == value_of(defaults, setting)) continue;
    if (!has_fp8) throw InputError("{}: expected it with --gemm-format fp8", flag_of(setting.name));
    if (is_without_meaning(config, setting))
      throw InputError("{}: expected it with --fp8-scaling delayed", flag_of(setting.name));
  }
  if (config.products.tp_wire == quant::Format::bf16) return;
  if (config.products.tp_wire != quant::Format::fp8)
    throw InputError("--tp-wire-format: got {}, expected bf16 or fp8", name_of(config.products.tp_wire));
  if (!has_fp8 || !splits_tokens(config))
    throw InputError(
        "--tp-wire-format: got fp8, expected it with --gemm-format fp8, --tp above 1 and "
        "--sequence-parallel on");
}

shard::FormatPolicies policies_of(const TrainConfig& config) {
  return {.wire = wire_policy(config), .wire_backward = backward_policy(config), .products = product_policy(config)};
}

std::vector<shard::ParameterSpec> specs_with_formats(const TrainConfig& config, const models::ModelConfig& model) {
  const shard::FormatPolicies policies = policies_of(config);
  std::vector<shard::ParameterSpec> specs = model.parameters({.tp_size = static_cast<int>(config.tp),
                                                              .etp = static_cast<int>(config.etp),
                                                              .ep = static_cast<int>(config.ep),
                                                              .embedding = embedding_reads(config)});
  for (shard::ParameterSpec& spec : specs) shard::set_formats(spec, policies, {.model = config.dtype});
  return specs;
}

void check_formats(const TrainConfig& config, const models::ModelConfig& model) {
  const shard::FormatPolicy products = product_policy(config);
  check_dtype(config, wire_policy(config), "--wire-format", "--wire-rules");
  check_dtype(config, backward_policy(config), "--wire-format-backward", "--wire-rules-backward");
  check_dtype(config, products, "--gemm-format", "--gemm-rules");
  check_products(config, products);
  const std::vector<shard::ParameterSpec> specs = specs_with_formats(config, model);
  std::vector<std::string> names;
  for (const shard::ParameterSpec& spec : specs)
    if (spec.dims.size() >= 2 && spec.takes_formats) names.push_back(spec.name);
  std::ranges::sort(names);
  shard::check_rules(config.wire_rules.value, names, "--wire-rules");
  shard::check_rules(config.wire_rules_backward.value, names, "--wire-rules-backward");
  shard::check_rules(config.gemm_rules.value, names, "--gemm-rules");
  check_formats_have_weights(config, shard::format_table(specs, policies_of(config)));
}

}  // namespace

namespace {

// Returns the settings that a graph does not support, or "". Does not examine places without a rank.
std::string refusal_of_graph(const TrainConfig& config) {
  if (config.backend != Backend::nccl) return fmt::format("--backend {}, expected nccl", name_of(config.backend));
  if (config.mask_documents) return "--mask-documents on: documents differ from step to step";
  if (config.debug_delays != 0)
    return fmt::format("--debug-delays {}: delays differ from step to step", config.debug_delays);
  return "";
}

}  // namespace

void check_graph(const TrainConfig& config) {
  if (!config.cuda_graph) return;
  if (const std::string refusal = refusal_of_graph(config); !refusal.empty())
    throw InputError("--cuda-graph: got on with {}", refusal);
}

bool accepts_graph(const TrainConfig& config) {
  return refusal_of_graph(config).empty() && !has_unused_places(config);
}

TrainConfig resolve_settings(TrainConfig config) {
  require_given(config);
  if (config.tp > 1) config.sequence_parallel = splits_tokens(config);
  if (config.rates.schedule_steps < 0) config.rates.schedule_steps = config.steps;
  if (!config.grad_wire) config.grad_wire = config.dtype;
  check_types(config);
  check_rates(config);
  check_dependants(config);
  check_graph(config);
  check_tp_tokens(config);
  return config;
}

shard::FormatTable format_table(const TrainConfig& config, const models::ModelConfig& model) {
  return shard::format_table(specs_with_formats(config, model), policies_of(config));
}

std::map<std::string, WeightFormats> weight_formats(const TrainConfig& config, const models::ModelConfig& model) {
  std::map<std::string, WeightFormats> formats;
  for (const shard::ParameterSpec& spec : specs_with_formats(config, model)) {
    formats[spec.name] = {.wire = spec.encoding ? quant::format_of(*spec.encoding) : quant::Format::bf16,
                          .product = spec.product};
  }
  return formats;
}

namespace {
// The embedding table and the output layer (one parameter if they are tied) are bf16 unless a rule names them.
shard::FormatPolicy policy_of(quant::Format format, const FormatRules& rules) {
  shard::FormatPolicy policy{.format = format,
                             .rules = {{"embedding.weight", quant::Format::bf16, /*is_default=*/true},
                                       {"output.weight", quant::Format::bf16, /*is_default=*/true}}};
  std::ranges::copy(rules.value, std::back_inserter(policy.rules));
  return policy;
}
}  // namespace

shard::FormatPolicy wire_policy(const TrainConfig& config) {
  return policy_of(config.wire_format, config.wire_rules);
}

shard::FormatPolicy backward_policy(const TrainConfig& config) {
  if (config.wire_format_backward) return policy_of(*config.wire_format_backward, config.wire_rules_backward);
  shard::FormatPolicy policy = wire_policy(config);
  std::ranges::copy(config.wire_rules_backward.value, std::back_inserter(policy.rules));
  return policy;
}

shard::FormatPolicy product_policy(const TrainConfig& config) {
  return policy_of(config.gemm_format, config.gemm_rules);
}

bool is_without_meaning(const TrainConfig& config, const Setting& setting) {
  const bool has_fp8 = has_format(product_policy(config), quant::Format::fp8);
  switch (setting.needs) {
    case Needs::nothing:
      return false;
    case Needs::fp8_products:
      return !has_fp8;
    case Needs::delayed_scaling:
      return !has_fp8 || config.products.scaling != nn::Fp8Scaling::delayed;
    case Needs::divided_tokens:
      return !splits_tokens(config);
    case Needs::fp8_tokens:
      return !has_fp8 || !splits_tokens(config);
    case Needs::nodes:
      return config.reduce_order != ReduceOrder::hierarchical;
    case Needs::automatic_recompute:
      return config.recompute != RecomputeSetting::automatic;
  }
  throw Error("setting {} has no known needs", setting.name);
}

std::vector<int> ranks_of_node(const TrainConfig& config, bool has_experts) {
  const bool in_nodes = config.reduce_order == ReduceOrder::hierarchical;
  const auto places = [&](std::int64_t compute) -> int {
    const std::int64_t in_replica = config.tp * config.gtp / compute, in_node = config.ranks_per_node / compute;
    return in_nodes ? static_cast<int>(std::clamp<std::int64_t>(in_node, 1, in_replica)) : 1;
  };
  std::vector<int> nodes{places(config.tp)};
  if (has_experts) nodes.push_back(places(config.etp * config.ep));
  return nodes;
}

shard::RowReads embedding_reads(const TrainConfig& config) {
  return {.per_microbatch = config.micro_batch * config.seq_len, .lookup = config.embedding};
}

namespace {

// Throws InputError for settings that a tp group with fewer ranks than --tp does not support.
void check_reduced_groups(const TrainConfig& config) {
  const PlaceMap unused = inactive_slots(config);
  const auto reduced = std::ranges::find_if(
      unused, [&](const auto& group) { return static_cast<std::int64_t>(group.second.size()) < config.tp; });
  if (reduced == unused.end()) return;
  const std::string place = to_text(reduced->first, reduced->second.front());
  for (const auto format : {quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4})
    for (const auto& [flag, policy] : {std::pair{"--wire-format", wire_policy(config)},
                                       {"--wire-format-backward", backward_policy(config)},
                                       {"--gemm-format", product_policy(config)}})
      if (has_format(policy, format))
        throw InputError(
            "{}: got {} with place {} unused (--dead, --idle), expected bf16 or fp8: the parts of a smaller tp group "
            "have other tiles of this format",
            flag, name_of(format), place);
  if (config.embedding == Lookup::rows)
    throw InputError("--embedding: got rows with place {} unused (--dead, --idle), expected auto or gather", place);
}

}  // namespace

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
  if (sizes.num_experts > 0 && has_unused_places(config))
    throw InputError("{}: model '{}' has experts, which need a whole mesh in this version", unused_flag(config),
                     config.model);
  check_experts(config, sizes);
  if (has_unused_places(config)) check_reduced_groups(config);
  if (config.expert_bias_rate < 0) config.expert_bias_rate = sizes.has_router_bias ? 0.001 : 0.0;
  check_formats(config, model);
  return config;
}

std::vector<std::string> warnings_of(const TrainConfig& config) {
  std::vector<std::string> lines;
  if (config.rates.shape == train::RateShape::cosine && config.steps > config.rates.schedule_steps &&
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
