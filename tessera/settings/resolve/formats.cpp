#include "tessera/settings/resolve/formats.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/quant/formats/product_kernel.h"
#include "tessera/settings/resolve/batch.h"
#include "tessera/settings/resolve/needs.h"
#include "tessera/settings/resolve/tp_tokens.h"
#include "tessera/settings/settings.h"
#include "tessera/shard/sizes.h"

namespace tessera::settings {
namespace {

// The embedding table and the output layer (one parameter if they are tied) are bf16 unless a rule names them.
shard::FormatPolicy policy_of(quant::Format format, const FormatRules& rules, std::string_view flag) {
  shard::FormatPolicy policy{.format = format,
                             .rules = {{"embedding.weight", quant::Format::bf16, /*is_default=*/true},
                                       {"output.weight", quant::Format::bf16, /*is_default=*/true}},
                             .rule_name = std::string(flag)};
  std::ranges::copy(rules.value, std::back_inserter(policy.rules));
  return policy;
}

// Returns the parameters of the model, with the formats of `policies`.
std::vector<shard::ParameterSpec> specs_with(const shard::FormatPolicies& policies, const TrainConfig& config,
                                             const models::ModelConfig& model) {
  std::vector<shard::ParameterSpec> specs = model.parameters({.tp_size = static_cast<int>(config.mesh.tp),
                                                              .etp = static_cast<int>(config.mesh.etp),
                                                              .ep = static_cast<int>(config.mesh.ep),
                                                              .embedding = embedding_reads(config)});
  for (shard::ParameterSpec& spec : specs) shard::set_formats(spec, policies, {.model = config.dtype});
  return specs;
}

// Throws InputError, which names the setting, if a policy uses a format with scales and --dtype is not bf16.
void check_dtype(quant::DType dtype, const shard::FormatPolicy& policy, std::string_view format,
                 std::string_view rules) {
  const auto other = std::ranges::find_if(
      policy.rules, [](const shard::FormatRule& rule) { return rule.value != quant::Format::bf16; });
  const quant::Format requested = other == policy.rules.end() ? policy.format : other->value;
  if (dtype != quant::DType::bf16 && requested != quant::Format::bf16)
    throw InputError("{}: got {} with --dtype {}, expected it with --dtype bf16",
                     other == policy.rules.end() ? format : rules, name_of(requested), name_of(dtype));
}

// Throws InputError if --gemm-kernels native is given and a product would be decoded.
void check_kernels(const TrainConfig& config, const shard::FormatPolicy& policy) {
  if (config.formats.kernels != GemmKernels::native) return;
  const bool is_gpu = config.backend == Backend::nccl;
  for (const quant::Format format :
       {quant::Format::fp8, quant::Format::fp8_block, quant::Format::mxfp8, quant::Format::nvfp4})
    if (has_format(policy, format) && quant::kernel_of(format, is_gpu) == quant::ProductKernel::decoded)
      throw InputError(
          "--gemm-kernels: got native with products in {}, which --backend {} multiplies as decoded values; expected "
          "auto, or products in {}",
          name_of(format), name_of(config.backend), is_gpu ? "bf16, fp8 or fp8_block" : "bf16");
}
// The same for the products of experts (quant/formats/stack_kernels.h).
void check_kernels_of_stacks(const TrainConfig& config, std::span<const shard::ParameterSpec> specs) {
  if (config.formats.kernels != GemmKernels::native) return;
  for (const shard::ParameterSpec& spec : specs)
    if (spec.dims.size() == 3 && spec.product != quant::Format::bf16 && !spec.kernels.are_native())
      throw InputError(
          "--gemm-kernels: got native with products in {} of '{}', some of which are multiplied as decoded values; "
          "expected auto, --gemm-rules with bf16 for experts, or fp8 with --fp8-recipe e4m3 and matrices whose sizes "
          "on "
          "each rank are multiples of {}",
          name_of(spec.product), spec.name, quant::kCodesMultiple);
}

// Throws InputError if a setting of nvfp4 products has a value without such products.
void check_recipe(const TrainConfig& config) {
  for (const Setting& setting : settings())
    if (setting.needs == Needs::nvfp4_products && is_without_meaning(config, setting) &&
        !value_of(config, setting).is_null())
      throw InputError("{}: got {}, expected it with --gemm-format nvfp4 or --gemm-rules with nvfp4",
                       flag_of(setting.name), base::shown(value_of(config, setting)));
}

void check_products(const TrainConfig& config, const shard::FormatPolicy& policy) {
  check_kernels(config, policy);
  check_recipe(config);
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
}

void check_tp_wire(const TrainConfig& config, const shard::FormatTable& table) {
  const quant::Format format = config.products.tp_wire;
  if (format == quant::Format::bf16) return;
  if (table.products.elements[static_cast<std::size_t>(format)] == 0)
    throw InputError("--tp-wire-format: got {}, but no product has it: expected bf16, or it with --gemm-format {}",
                     name_of(format), name_of(format));
  if (!splits_tokens(config))
    throw InputError("--tp-wire-format: got {}, expected it with --tp above 1 and --sequence-parallel on",
                     name_of(format));
}

// Throws InputError if a flag chooses a number format that no weight of the model has.
void check_formats_have_weights(const TrainConfig& config, const shard::FormatTable& table) {
  const auto check = [&](std::string_view flag, quant::Format format, const shard::FormatShares& shares) {
    if (format != quant::Format::bf16 && shares.elements[static_cast<std::size_t>(format)] == 0)
      throw InputError(
          "{}: got {}, but no weight of model '{}' has it: expected bf16, or rules that leave a weight to it", flag,
          name_of(format), config.model);
  };
  const FormatSettings& formats = config.formats;
  check("--wire-format", formats.wire, table.wire);
  if (formats.wire_backward) check("--wire-format-backward", *formats.wire_backward, table.wire_backward);
  check("--gemm-format", formats.products, table.products);
}

shard::ParameterTypes types_of_run(quant::DType dtype) {
  return {.model = dtype, .accumulator = quant::accumulator_of(dtype)};
}

// Throws InputError if --masters split is given and the master of a weight cannot be split.
void check_masters(const TrainConfig& config, std::span<const shard::ParameterSpec> specs) {
  if (config.masters != Masters::split) return;
  if (config.dtype != quant::DType::bf16)
    throw InputError("--masters: got split with --dtype {}, expected auto or fp32, or --dtype bf16",
                     name_of(config.dtype));
  for (const shard::ParameterSpec& spec : specs) {
    const shard::ParameterTypes types = shard::types_of(spec, types_of_run(config.dtype));
    if (!shard::has_master(spec, types) || shard::can_split_master(spec, types)) continue;
    if (spec.encoding)
      throw InputError(
          "--masters: got split, but '{}' is stored in {}: expected auto, or bf16 for this weight "
          "(--wire-format, --wire-rules)",
          spec.name, name_of(quant::format_of(*spec.encoding)));
    throw InputError(
        "--masters: got split, but backward passes read '{}' in another format: expected auto, or bf16 for "
        "this weight (--wire-format-backward, --wire-rules-backward)",
        spec.name);
  }
}

}  // namespace

shard::FormatPolicies policies_of(const FormatSettings& formats) {
  const shard::FormatPolicy wire = policy_of(formats.wire, formats.wire_rules, "--wire-rules");
  shard::FormatPolicy backward = formats.wire_backward ? policy_of(*formats.wire_backward, {}, {}) : wire;
  backward.rule_name = "--wire-rules-backward";
  std::ranges::copy(formats.wire_rules_backward.value, std::back_inserter(backward.rules));
  return {.wire = wire,
          .wire_backward = backward,
          .products = policy_of(formats.products, formats.product_rules, "--gemm-rules")};
}

shard::FormatPolicies policies_of(const TrainConfig& config) {
  shard::FormatPolicies policies = policies_of(config.formats);
  policies.products.stacks = {.recipe = config.products.recipe,
                              .only_native = config.formats.kernels == GemmKernels::native};
  return policies;
}

void complete_recipe(FormatSettings& formats) {
  if (!has_format(policies_of(formats).products, quant::Format::nvfp4)) return;
  const nn::ProductOptions defaults;
  if (!formats.nvfp4_hadamard) formats.nvfp4_hadamard = defaults.hadamard;
  if (!formats.nvfp4_rounding) formats.nvfp4_rounding = defaults.rounding;
}

bool has_format(const shard::FormatPolicy& policy, quant::Format format) {
  return policy.format == format ||
         std::ranges::any_of(policy.rules, [&](const shard::FormatRule& rule) { return rule.value == format; });
}

std::map<std::string, WeightFormats> weight_formats(const TrainConfig& config, const models::ModelConfig& model) {
  std::map<std::string, WeightFormats> formats;
  for (const shard::ParameterSpec& spec : specs_with(policies_of(config), config, model)) {
    formats[spec.name] = {.wire = spec.encoding ? quant::format_of(*spec.encoding) : quant::Format::bf16,
                          .product = spec.product};
  }
  return formats;
}

shard::FormatTable format_table(const TrainConfig& config, const models::ModelConfig& model) {
  const shard::FormatPolicies policies = policies_of(config);
  return shard::format_table(specs_with(policies, config, model), policies);
}

void check_formats(const TrainConfig& config, const models::ModelConfig& model) {
  const FormatSettings& formats = config.formats;
  const shard::FormatPolicies policies = policies_of(config);
  check_dtype(config.dtype, policies.wire, "--wire-format", "--wire-rules");
  check_dtype(config.dtype, policies.wire_backward, "--wire-format-backward", "--wire-rules-backward");
  check_dtype(config.dtype, policies.products, "--gemm-format", "--gemm-rules");
  check_products(config, policies.products);
  const std::vector<shard::ParameterSpec> specs = specs_with(policies, config, model);
  check_kernels_of_stacks(config, specs);
  std::vector<std::string> names;
  for (const shard::ParameterSpec& spec : specs)
    if (spec.dims.size() >= 2 && spec.takes_formats) names.push_back(spec.name);
  std::ranges::sort(names);
  shard::check_rules(formats.wire_rules.value, names, "--wire-rules");
  shard::check_rules(formats.wire_rules_backward.value, names, "--wire-rules-backward");
  shard::check_rules(formats.product_rules.value, names, "--gemm-rules");
  const shard::FormatTable table = shard::format_table(specs, policies);
  check_formats_have_weights(config, table);
  check_tp_wire(config, table);
  check_masters(config, specs);
}

MasterBytes master_bytes(const TrainConfig& config, const models::ModelConfig& model) {
  const shard::Cuts cuts{.split_masters = config.masters != Masters::fp32};
  MasterBytes bytes;
  for (const shard::ParameterSpec& spec : specs_with(policies_of(config), config, model)) {
    const shard::ParameterTypes types = shard::types_of(spec, types_of_run(config.dtype));
    std::int64_t elements = 1;
    for (const std::int64_t dim : spec.dims) elements *= dim;
    (shard::splits_master(spec, types, cuts) ? bytes.split : bytes.whole) +=
        shard::master_bytes(spec, types, cuts, elements);
  }
  return bytes;
}

}  // namespace tessera::settings
