#include "tessera/settings/resolve/update_rules.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::settings {
namespace {

// Returns the names of the parameters that the optimizer updates, sorted. Names do not depend on the mesh.
std::vector<std::string> trained_names(const models::ModelConfig& model) {
  std::vector<std::string> names;
  for (const shard::ParameterSpec& spec : model.parameters({}))
    if (spec.trainable) names.push_back(spec.name);
  std::ranges::sort(names);
  return names;
}

void check(const NumberRules& rules, const std::vector<std::string>& names, std::string_view flag) {
  std::vector<base::NameRule<std::string>> texts;
  for (const base::NameRule<double>& rule : rules.value) texts.push_back({rule.pattern, fmt::format("{}", rule.value)});
  base::check_name_rules(texts, names, flag, "a trained parameter");
}

}  // namespace

ops::UpdatePolicy update_policy(const TrainConfig& config, const models::ModelConfig& model) {
  ops::AdamW adamw = config.adamw;
  adamw.has_bf16_moments = config.moments == Moments::bf16;
  ops::UpdatePolicy policy;
  policy.rules.push_back(ops::make_rule(adamw));
  if (config.lr_rules.empty() && config.decay_rules.empty()) return policy;
  for (const std::string& name : trained_names(model)) {
    const base::NameRule<double>* factor = base::rule_of(config.lr_rules.value, name);
    const base::NameRule<double>* decay = base::rule_of(config.decay_rules.value, name);
    ops::UpdateGroup group;
    if (factor != nullptr) group.lr_factor = factor->value;
    if (decay != nullptr) group.decay = decay->value;
    if (factor != nullptr || decay != nullptr) policy.parameters[name] = {.group = group};
  }
  return policy;
}

void check_update_rules(const TrainConfig& config, const models::ModelConfig& model) {
  if (config.lr_rules.empty() && config.decay_rules.empty()) return;
  const std::vector<std::string> names = trained_names(model);
  check(config.lr_rules, names, "--lr-rules");
  check(config.decay_rules, names, "--decay-rules");
}

}  // namespace tessera::settings
