#include "tessera/settings/resolve/update_rules.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/base/json_file.h"
#include "tessera/settings/settings.h"
#include "tessera/shard/matrices/matrix_blocks.h"

namespace tessera::settings {
namespace {

// Returns the parameters that the optimizer updates, sorted by name. Names do not depend on the mesh.
std::vector<shard::ParameterSpec> trained_parameters(const models::ModelConfig& model) {
  std::vector<shard::ParameterSpec> specs = model.parameters({});
  std::erase_if(specs, [](const shard::ParameterSpec& spec) { return !spec.trainable; });
  std::ranges::sort(specs, {}, &shard::ParameterSpec::name);
  return specs;
}

constexpr std::string_view kRuleNames[] = {"adamw", "muon"};  // by OptimizerRule

OptimizerRule rule_for(const TrainConfig& config, const shard::ParameterSpec& spec) {
  if (const auto* rule = base::rule_of(config.optimizer_rules.value, spec.name)) return rule->value;
  return spec.is_hidden_matrix ? config.optimizer : OptimizerRule::adamw;
}

void check_matrices(const TrainConfig& config, const shard::ParameterSpec& spec) {
  if (rule_for(config, spec) != OptimizerRule::muon || shard::has_matrices(spec)) return;
  throw InputError("--optimizer-rules: got muon for {}, {}, expected adamw", spec.name,
                   spec.looked_up ? "a table whose rows are read by index" : "a vector");
}

void check(const NumberRules& rules, const std::vector<std::string>& names, std::string_view flag) {
  std::vector<base::NameRule<std::string>> texts;
  for (const base::NameRule<double>& rule : rules.value) texts.push_back({rule.pattern, fmt::format("{}", rule.value)});
  base::check_name_rules(texts, names, flag, "a trained parameter");
}

}  // namespace

bool uses_muon(const TrainConfig& config) {
  return config.optimizer == OptimizerRule::muon ||
         std::ranges::any_of(config.optimizer_rules.value,
                             [](const auto& rule) { return rule.value == OptimizerRule::muon; });
}

ops::UpdatePolicy update_policy(const TrainConfig& config, const models::ModelConfig& model) {
  ops::AdamW adamw = config.adamw;
  adamw.has_bf16_moments = config.moments == Moments::bf16;
  ops::UpdatePolicy policy;
  policy.rules.push_back(ops::make_rule(adamw));
  const bool has_muon = uses_muon(config);
  if (has_muon) {
    ops::Muon muon = config.muon;
    muon.weight_decay = adamw.weight_decay;
    muon.has_bf16_momentum = adamw.has_bf16_moments;
    policy.rules.push_back(ops::make_matrix_rule(muon));
  }
  if (!has_muon && config.lr_rules.empty() && config.decay_rules.empty()) return policy;
  for (const shard::ParameterSpec& spec : trained_parameters(model)) {
    const base::NameRule<double>* factor = base::rule_of(config.lr_rules.value, spec.name);
    const base::NameRule<double>* decay = base::rule_of(config.decay_rules.value, spec.name);
    const bool is_muon = rule_for(config, spec) == OptimizerRule::muon;
    ops::ParameterUpdate update{.rule = is_muon ? std::size_t{1} : 0, .group = {}};
    if (factor != nullptr) update.group.lr_factor = factor->value;
    if (is_muon && config.muon_lr) update.group.lr_factor *= *config.muon_lr / config.rates.lr;
    if (decay != nullptr) update.group.decay = decay->value;
    if (factor != nullptr || decay != nullptr || is_muon) policy.parameters[spec.name] = update;
  }
  return policy;
}

void check_update_rules(const TrainConfig& config, const models::ModelConfig& model) {
  if (config.lr_rules.empty() && config.decay_rules.empty() && config.optimizer_rules.empty()) return;
  const std::vector<shard::ParameterSpec> specs = trained_parameters(model);
  std::vector<std::string> names;
  for (const shard::ParameterSpec& spec : specs) names.push_back(spec.name);
  check(config.lr_rules, names, "--lr-rules");
  check(config.decay_rules, names, "--decay-rules");
  std::vector<base::NameRule<std::string>> texts;
  for (const base::NameRule<OptimizerRule>& rule : config.optimizer_rules.value)
    texts.push_back({rule.pattern, std::string(kRuleNames[static_cast<std::size_t>(rule.value)])});
  base::check_name_rules(texts, names, "--optimizer-rules", "a trained parameter");
  for (const shard::ParameterSpec& spec : specs) check_matrices(config, spec);
}

void check_muon(const TrainConfig& config) {
  const TrainConfig defaults;
  for (const Setting& setting : settings())
    if (setting.needs == Needs::muon && !uses_muon(config) && value_of(config, setting) != value_of(defaults, setting))
      throw InputError("{}: got {}, expected it with --optimizer muon, or with muon in --optimizer-rules",
                       flag_of(setting.name), base::shown(value_of(config, setting)));
  if (!uses_muon(config)) return;
  if (config.muon_lr && config.rates.lr == 0)
    throw InputError("--muon-lr: got {} with --lr 0, expected --lr above 0: Muon follows the schedule of --lr",
                     *config.muon_lr);
}

}  // namespace tessera::settings
