#include "tessera/settings/resume.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/models/registry.h"
#include "tessera/settings/resolve/formats.h"
#include "tessera/settings/resolve/needs.h"
#include "tessera/settings/settings.h"
#include "tessera/settings/text/parse.h"

namespace tessera::settings {
namespace {
using nlohmann::json;

void refuse_other_value(const Setting& setting, const json& before, const json& requested, const std::string& where) {
  if (!before.is_null() && before != requested)
    throw InputError("{}: got {}, expected {}: the run stored in {} has this value, which cannot change on --resume",
                     flag_of(setting.name), base::shown(requested), base::shown(before), where);
}

bool is_given(const TrainConfig& command, const Setting& setting) {
  return command.given.contains(std::string(setting.name));
}

bool is_any_given(const TrainConfig& command, OnResume kind) {
  return std::ranges::any_of(
      settings(), [&](const Setting& setting) { return setting.on_resume == kind && is_given(command, setting); });
}

// The parts of the stored mesh that a resumed run keeps.
struct KeptMesh {
  bool shape = false;   // tp, gtp, dp, etp, ep and egtp, and each setting of unused places that is not given
  bool places = false;  // also all unused places, and therefore the number of ranks
};

bool is_kept(const Setting& setting, const TrainConfig& command, const KeptMesh& mesh) {
  if (setting.on_resume == OnResume::command_line || is_given(command, setting)) return false;
  if (setting.name == "ranks") return mesh.places;
  return mesh.shape || (setting.on_resume != OnResume::mesh && setting.on_resume != OnResume::places);
}

// Returns a line about the settings of nvfp4 products that an earlier run did not store; empty if they have no effect.
std::string note_of_recipe(const TrainConfig& command, const TrainConfig& merged) {
  std::string note;
  for (const Setting& setting : settings())
    if (setting.needs == Needs::nvfp4_products && !is_given(command, setting) && !is_without_meaning(merged, setting)) {
      const json value = value_of(merged, setting);
      note += fmt::format("{}{} {}", note.empty() ? "the stored run has an earlier recipe of nvfp4 products: " : ", ",
                          flag_of(setting.name), value.is_boolean() ? "off" : value.get<std::string>());
    }
  return note;
}

}  // namespace

bool complete_earlier_run(TrainConfig& stored) {
  FormatSettings& formats = stored.formats;
  if (formats.nvfp4_hadamard || !has_format(policies_of(formats).products, quant::Format::nvfp4)) return false;
  formats.nvfp4_hadamard = false;
  formats.nvfp4_rounding = nn::GradientRounding::nearest;
  return true;
}

MergedConfig merge_stored(const TrainConfig& command, const json& stored, const std::string& where, bool has_trained) {
  TrainConfig before;
  apply_json(before, stored, where);
  MergedConfig merged{
      .config = command, .changes = {}, .note = {}, .keeps_mesh = false, .stored_mesh = {}, .has_trained = has_trained};
  const bool lacks_recipe = complete_earlier_run(before);
  if (before.given.contains("ranks")) merged.stored_mesh = mesh_text(before.mesh);
  const bool keeps_shape = !merged.stored_mesh.empty() && !is_any_given(command, OnResume::mesh);
  merged.keeps_mesh = keeps_shape && !is_any_given(command, OnResume::places);
  const KeptMesh kept_mesh{.shape = keeps_shape, .places = merged.keeps_mesh};
  for (const Setting& setting : settings()) {
    const json old_value = value_of(before, setting);
    if (setting.on_resume == OnResume::fixed && is_given(command, setting) && has_trained)
      refuse_other_value(setting, old_value, value_of(command, setting), where);
    if (!is_kept(setting, command, kept_mesh) || old_value.is_null()) continue;
    if (setting.name == "schedule_steps" && old_value == 0) continue;
    set_from_json(merged.config, setting, old_value, where);
  }
  for (const Setting& setting : settings())
    if (setting.on_resume == OnResume::kept && !is_given(command, setting) &&
        is_without_meaning(merged.config, setting))
      setting.field.copy(merged.config, command);
  merged.config.given = command.given;
  if (lacks_recipe) merged.note = note_of_recipe(command, merged.config);
  for (const Setting& setting : settings()) {
    if (setting.name == "resume" || setting.name == "out") continue;
    const json old_value = value_of(before, setting), new_value = value_of(merged.config, setting);
    if (!old_value.is_null() && !new_value.is_null() && old_value != new_value)
      merged.changes.push_back(
          fmt::format("{}: {} -> {}", flag_of(setting.name), base::shown(old_value), base::shown(new_value)));
  }
  return merged;
}

std::string mesh_note(const MergedConfig& merged, const RunMesh& mesh) {
  const std::string_view from = merged.has_trained ? "checkpoint" : "run";
  if (merged.keeps_mesh) return fmt::format("mesh of the {}: {}", from, mesh.text);
  const std::string stored = merged.stored_mesh.empty() ? fmt::format("the {} stores no mesh", from)
                                                        : fmt::format("the {}'s was {}", from, merged.stored_mesh);
  return fmt::format("mesh of the command line: {}; {}", mesh.text, stored);
}

void require_same_model(const json& stored, const models::ModelConfig& model, const std::string& where) {
  const json before = models::parse_model_config(stored, where)->to_json(), now = model.to_json();
  for (const auto& [key, value] : before.items())
    if (const json other = now.value(key, json()); other != value)
      throw InputError("--model: {} is {}, expected {}: the run stored in {} has this value", key, base::shown(other),
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

}  // namespace tessera::settings
