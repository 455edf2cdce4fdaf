#include "tessera/run/config/resume.h"

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/models/registry.h"
#include "tessera/run/config/parse.h"
#include "tessera/run/config/resolve.h"
#include "tessera/run/config/settings.h"

namespace tessera::run {
namespace {
using nlohmann::json;

void refuse_other_value(const Setting& setting, const json& before, const json& asked, const std::string& where) {
  if (!before.is_null() && before != asked)
    throw InputError("{}: got {}, expected {}: the run stored in {} has it, and it cannot change on --resume",
                     flag_of(setting.name), base::shown(asked), base::shown(before), where);
}

}  // namespace

MergedConfig merge_stored(const TrainConfig& command, const json& stored, const std::string& where, bool has_trained) {
  TrainConfig before;
  apply_json(before, stored, where);
  MergedConfig merged{.config = command, .changes = {}};
  for (const Setting& setting : settings()) {
    const json old_value = value_of(before, setting);
    const bool given = command.given.count(std::string(setting.name)) > 0;
    if (setting.on_resume == OnResume::fixed && given && has_trained)
      refuse_other_value(setting, old_value, value_of(command, setting), where);
    if (setting.on_resume == OnResume::command_line || given || old_value.is_null()) continue;
    if (setting.name == "schedule_steps" && old_value == 0) continue;
    set_from_json(merged.config, setting, old_value, where);
  }
  // What was asked of fp8 products goes with them.
  for (const Setting& setting : settings())
    if (setting.on_resume == OnResume::kept && command.given.count(std::string(setting.name)) == 0 &&
        is_of_missing_products(merged.config, setting.name))
      set_from_json(merged.config, setting, value_of(command, setting), where);
  merged.config.given = command.given;
  for (const Setting& setting : settings()) {
    if (setting.name == "resume" || setting.name == "out") continue;
    const json old_value = value_of(before, setting), new_value = value_of(merged.config, setting);
    if (!old_value.is_null() && !new_value.is_null() && old_value != new_value)
      merged.changes.push_back(
          fmt::format("{}: {} -> {}", flag_of(setting.name), base::shown(old_value), base::shown(new_value)));
  }
  return merged;
}

void require_same_model(const json& stored, const models::ModelConfig& model, const std::string& where) {
  const json before = models::parse_model_config(stored, where)->to_json(), now = model.to_json();
  for (const auto& [key, value] : before.items())
    if (const json other = now.value(key, json()); other != value)
      throw InputError("--model: {} is {}, expected {}: the run stored in {} has it", key, base::shown(other),
                       base::shown(value), where);
}

void require_same_data(const json& stored, const json& fingerprint, const std::string& where) {
  if (stored == fingerprint) return;
  if (stored.is_array() && fingerprint.is_array() && stored.size() == fingerprint.size())
    for (std::size_t i = 0; i < stored.size(); ++i)
      if (stored[i] != fingerprint[i])
        throw InputError("--data: set {} is {}, expected {}: the run stored in {} was trained on it", i + 1,
                         base::shown(fingerprint[i]), base::shown(stored[i]), where);
  throw InputError("--data: is {}, expected {}: the run stored in {} was trained on it", base::shown(fingerprint),
                   base::shown(stored), where);
}

}  // namespace tessera::run
