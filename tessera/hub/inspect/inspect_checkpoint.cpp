#include "tessera/hub/inspect/inspect_checkpoint.h"
#include "tessera/hub/find_checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/hub/inspect/quantization_error.h"
#include "tessera/models/registry.h"
#include "tessera/settings/resolve/formats.h"
#include "tessera/settings/text/parse.h"

namespace tessera::hub {
namespace {

// Returns the kinds of tensors in the checkpoint. Without state of the update rule, a run starts with state of zero.
std::vector<std::string> kinds_of(const checkpoint::Manifest& manifest) {
  std::set<checkpoint::Kind> kinds;
  for (const checkpoint::StoredTensor& tensor : manifest.tensors) kinds.insert(tensor.kind);
  std::vector<std::string> names;
  for (const checkpoint::Kind& kind : kinds) names.emplace_back(kind.name());
  return names;
}

// Returns the state planes of the parameters, as [{"planes": {kind: type}, "parameters", "state_bytes"}] with an entry
// for each combination of planes. An update rule has one combination.
nlohmann::json rules_of(const checkpoint::Manifest& manifest) {
  std::map<std::string, std::map<std::string, std::string>> planes;  // by parameter: the type by kind
  std::map<std::string, std::int64_t> elements, bytes;
  for (const checkpoint::StoredTensor& tensor : manifest.tensors) {
    if (!tensor.kind.is_state()) continue;
    planes[tensor.name][std::string(tensor.kind.name())] = name_of(tensor.dtype);
    elements[tensor.name] = layout::matrix_shape(tensor.dims).elements();
    bytes[tensor.name] += elements[tensor.name] * static_cast<std::int64_t>(quant::size_of(tensor.dtype));
  }
  std::map<std::map<std::string, std::string>, std::pair<std::int64_t, std::int64_t>> totals;
  for (const auto& [name, types] : planes) {
    auto& [all_elements, all_bytes] = totals[types];
    all_elements += elements[name];
    all_bytes += bytes[name];
  }
  nlohmann::json rules = nlohmann::json::array();
  for (const auto& [types, total] : totals)
    rules.push_back({{"planes", types}, {"parameters", total.first}, {"state_bytes", total.second}});
  return rules;
}

// Returns the weights' formats by name, from the settings of the run that wrote the checkpoint; empty if the checkpoint
// stores no run. Throws InputError.
std::map<std::string, settings::WeightFormats> formats_of_run(const checkpoint::CheckpointReader& reader) {
  const nlohmann::json& state = reader.state();
  if (!state.is_object() || !state.contains("config") || !state.contains("model")) return {};
  const std::string where = (reader.folder() / checkpoint::kManifestFile).string() + ": state.";
  settings::TrainConfig config;
  settings::apply_json(config, state["config"], where + "config");
  return settings::weight_formats(config, *models::parse_model_config(state["model"], where + "model"));
}

// Adds "wire_format" to weights, and "gemm_format" if products use a format other than bf16.
void add_wire_formats(const checkpoint::CheckpointReader& reader, nlohmann::json& result) {
  try {
    const std::map<std::string, settings::WeightFormats> formats = formats_of_run(reader);
    for (nlohmann::json& tensor : result["tensors"]) {
      const auto found = formats.find(tensor["name"].get<std::string>());
      if (tensor["kind"] != checkpoint::Kind::weight.name() || found == formats.end()) continue;
      if (found->second.wire == quant::Format::bf16)
        tensor["wire_format"] = tensor["dtype"];
      else
        tensor["wire_format"] = name_of(found->second.wire);
      if (found->second.product != quant::Format::bf16) tensor["gemm_format"] = name_of(found->second.product);
    }
  } catch (const InputError& error) {
    result["wire_format_error"] = error.what();
  }
}

}  // namespace

nlohmann::json inspect_checkpoint(const std::filesystem::path& path, const InspectOptions& options) {
  const std::filesystem::path folder = find_checkpoint(path, CheckpointUse::inspect);
  const checkpoint::CheckpointReader reader = naming_other_checkpoints(folder, CheckpointUse::inspect, [&] {
    checkpoint::CheckpointReader opened(folder);
    if (options.verify) opened.verify();
    return opened;
  });
  nlohmann::json result = {{"checkpoint", reader.folder().string()},
                           {"step", reader.step()},
                           {"state", reader.state()},
                           {"kinds", kinds_of(reader.manifest())},
                           {"update_rules", rules_of(reader.manifest())},
                           {"files", nlohmann::json::array()},
                           {"tensors", nlohmann::json::array()}};
  for (const checkpoint::StoredFile& file : reader.manifest().files)
    result["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.checksum}});
  std::vector<const checkpoint::StoredTensor*> tensors;
  for (const checkpoint::StoredTensor& tensor : reader.manifest().tensors) tensors.push_back(&tensor);
  std::sort(tensors.begin(), tensors.end(), [](const checkpoint::StoredTensor* a, const checkpoint::StoredTensor* b) {
    return std::tie(a->name, a->kind) < std::tie(b->name, b->kind);
  });
  for (const checkpoint::StoredTensor* tensor : tensors) {
    nlohmann::json entry = {{"name", tensor->name},
                            {"kind", tensor->kind.name()},
                            {"dtype", name_of(tensor->dtype)},
                            {"shape", tensor->dims},
                            {"elements", layout::matrix_shape(tensor->dims).elements()},
                            {"pieces", tensor->pieces.size()}};
    if (options.hash) entry["hash"] = reader.hash(*tensor);
    if (!options.quantization_error.empty() && tensor->kind == checkpoint::Kind::weight && tensor->dims.size() >= 2)
      entry["quantization_error"] = quantization_errors(reader, *tensor, options.quantization_error);
    result["tensors"].push_back(std::move(entry));
  }
  add_wire_formats(reader, result);
  return result;
}

std::string checkpoint_table(const nlohmann::json& inspected) {
  std::int64_t bytes = 0;
  for (const auto& file : inspected["files"]) bytes += file["bytes"].get<std::int64_t>();
  std::string text = fmt::format(
      "{}: step {}, {} tensors ({}), {} files, {} bytes\n", inspected["checkpoint"].get<std::string>(),
      inspected["step"].get<std::int64_t>(), inspected["tensors"].size(),
      fmt::join(inspected["kinds"].get<std::vector<std::string>>(), ", "), inspected["files"].size(), bytes);
  for (const auto& rule : inspected["update_rules"]) {
    std::vector<std::string> planes;
    for (const auto& [kind, type] : rule["planes"].items()) planes.push_back(kind + " " + type.get<std::string>());
    text += fmt::format("state of {} parameters: {}, {} bytes\n", rule["parameters"].get<std::int64_t>(),
                        fmt::join(planes, " + "), rule["state_bytes"].get<std::int64_t>());
  }
  std::size_t width = 4;
  for (const auto& tensor : inspected["tensors"]) width = std::max(width, tensor["name"].get<std::string>().size());
  if (inspected.contains("wire_format_error"))
    text += fmt::format("formats of weights are unknown: {}\n", inspected["wire_format_error"].get<std::string>());
  text += fmt::format("{:<{}}  {:<10}  {:<5}  {:<9}  {:<9}  {:<18}  {}\n", "name", width, "kind", "dtype", "wire",
                      "gemm", "shape", "hash");
  for (const auto& tensor : inspected["tensors"]) {
    const std::string shape = fmt::format("[{}]", fmt::join(tensor["shape"].get<std::vector<std::int64_t>>(), ", "));
    text += fmt::format("{:<{}}  {:<10}  {:<5}  {:<9}  {:<9}  {:<18}  {}\n", tensor["name"].get<std::string>(), width,
                        tensor["kind"].get<std::string>(), tensor["dtype"].get<std::string>(),
                        tensor.value("wire_format", "-"), tensor.value("gemm_format", "-"), shape,
                        tensor.value("hash", "-"));
  }
  text += quantization_error_table(inspected["tensors"]);
  return text;
}

}  // namespace tessera::hub
