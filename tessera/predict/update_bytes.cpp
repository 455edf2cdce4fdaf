#include "tessera/predict/update_bytes.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera::predict {
namespace {

double gigabytes_of(std::int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

}  // namespace

void add_to(std::vector<RuleBytes>& rules, const ops::UpdateRule& rule, const UpdatedElements& elements) {
  if (elements.count == 0) return;
  auto entry = std::ranges::find(rules, rule.name(), &RuleBytes::rule);
  if (entry == rules.end()) {
    rules.push_back({.rule = rule.name(), .planes = rule.planes(elements.types.accumulator)});
    entry = rules.end() - 1;
  }
  entry->parameters += elements.count;
  entry->state += ops::state_bytes(rule, elements.count, elements.types.accumulator);
  entry->update += update_bytes(rule, elements);
}

nlohmann::ordered_json rules_json(const std::vector<RuleBytes>& rules) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const RuleBytes& rule : rules) {
    nlohmann::ordered_json planes = nlohmann::ordered_json::object();
    for (const ops::StatePlane& plane : rule.planes) planes[std::string(plane.name)] = name_of(plane.type);
    json.push_back({{"rule", rule.rule},
                    {"planes", std::move(planes)},
                    {"parameters", rule.parameters},
                    {"state_bytes", rule.state}});
    if (rule.update > 0) json.back()["update_bytes"] = rule.update;
  }
  return json;
}

std::string rules_text(const std::vector<RuleBytes>& rules) {
  std::string text;
  for (const RuleBytes& rule : rules) {
    std::string planes;
    for (const ops::StatePlane& plane : rule.planes)
      planes += fmt::format("{}{} {}", planes.empty() ? "" : " + ", plane.name, name_of(plane.type));
    text += fmt::format("  {:7} {} parameters, {}: {:.3g} GB", rule.rule, rule.parameters,
                        planes.empty() ? "no state" : planes, gigabytes_of(rule.state));
    if (rule.update > 0)
      text += fmt::format("; an update reads and writes {:.3g} GB, {:.1f} bytes a parameter", gigabytes_of(rule.update),
                          static_cast<double>(rule.update) / static_cast<double>(rule.parameters));
    text += "\n";
  }
  return text;
}

}  // namespace tessera::predict
