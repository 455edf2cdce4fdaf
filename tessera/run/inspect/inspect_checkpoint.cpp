#include "tessera/run/inspect/inspect_checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "tessera/checkpoint/folder.h"
#include "tessera/checkpoint/reader.h"

namespace tessera::run {
namespace {

// Which kinds of tensors it holds: without exp_avg and exp_avg_sq a run starts with moments of zero.
std::vector<std::string> kinds_of(const checkpoint::Manifest& manifest) {
  std::set<checkpoint::Kind> kinds;
  for (const checkpoint::StoredTensor& tensor : manifest.tensors) kinds.insert(tensor.kind);
  std::vector<std::string> names;
  for (const checkpoint::Kind kind : kinds) names.emplace_back(name_of(kind));
  return names;
}

}  // namespace

nlohmann::json inspect_checkpoint(const std::filesystem::path& path, const InspectOptions& options) {
  const checkpoint::CheckpointReader reader(checkpoint::resolve_checkpoint(path));
  if (options.verify) reader.verify();
  nlohmann::json result = {{"checkpoint", reader.folder().string()},
                           {"step", reader.step()},
                           {"state", reader.state()},
                           {"kinds", kinds_of(reader.manifest())},
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
                            {"kind", name_of(tensor->kind)},
                            {"dtype", name_of(tensor->dtype)},
                            {"shape", tensor->dims},
                            {"elements", layout::matrix_shape(tensor->dims).elements()},
                            {"pieces", tensor->pieces.size()}};
    if (options.hash) entry["hash"] = reader.hash(*tensor);
    result["tensors"].push_back(std::move(entry));
  }
  return result;
}

std::string checkpoint_table(const nlohmann::json& inspected) {
  std::int64_t bytes = 0;
  for (const auto& file : inspected["files"]) bytes += file["bytes"].get<std::int64_t>();
  std::string text = fmt::format(
      "{}: step {}, {} tensors ({}), {} files, {} bytes\n", inspected["checkpoint"].get<std::string>(),
      inspected["step"].get<std::int64_t>(), inspected["tensors"].size(),
      fmt::join(inspected["kinds"].get<std::vector<std::string>>(), ", "), inspected["files"].size(), bytes);
  std::size_t width = 4;
  for (const auto& tensor : inspected["tensors"]) width = std::max(width, tensor["name"].get<std::string>().size());
  text += fmt::format("{:<{}}  {:<10}  {:<5}  {:<18}  {}\n", "name", width, "kind", "dtype", "shape", "hash");
  for (const auto& tensor : inspected["tensors"]) {
    const std::string shape = fmt::format("[{}]", fmt::join(tensor["shape"].get<std::vector<std::int64_t>>(), ", "));
    text += fmt::format("{:<{}}  {:<10}  {:<5}  {:<18}  {}\n", tensor["name"].get<std::string>(), width,
                        tensor["kind"].get<std::string>(), tensor["dtype"].get<std::string>(), shape,
                        tensor.value("hash", "-"));
  }
  return text;
}

}  // namespace tessera::run
