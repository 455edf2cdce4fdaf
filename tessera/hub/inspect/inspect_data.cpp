#include "tessera/hub/inspect/inspect_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tessera/data/indexed_dataset.h"

namespace tessera::hub {
namespace {

constexpr std::int64_t kChunkTokens = std::int64_t{1} << 18;

std::filesystem::path prefix_of(std::filesystem::path path) {
  if (path.extension() == ".idx" || path.extension() == ".bin") path.replace_extension();
  return path;
}

}  // namespace

bool is_data_path(const std::filesystem::path& path) {
  std::error_code code;
  return std::filesystem::is_regular_file(prefix_of(path).concat(".idx"), code);
}

nlohmann::json inspect_data(const std::filesystem::path& path) {
  const std::string prefix = prefix_of(path).string();
  const data::IndexedDataset data(prefix);
  nlohmann::json result = {{"data", prefix},
                           {"token_type", name_of(data.token_type())},
                           {"tokens", data.num_tokens()},
                           {"sequences", data.num_sequences()},
                           {"documents", data.num_documents()},
                           {"smallest_token", nullptr},
                           {"largest_token", nullptr},
                           {"index_xxh64", fmt::format("{:016x}", data.index_hash())}};
  std::vector<std::int64_t> extremes, chunk;
  for (std::int64_t at = 0; at < data.num_tokens(); at += kChunkTokens) {
    chunk.resize(static_cast<std::size_t>(std::min(kChunkTokens, data.num_tokens() - at)));
    data.read(at, static_cast<std::int64_t>(chunk.size()), chunk.data());
    const auto [low, high] = std::minmax_element(chunk.begin(), chunk.end());
    extremes.insert(extremes.end(), {*low, *high});
  }
  if (!extremes.empty()) {
    const auto [low, high] = std::minmax_element(extremes.begin(), extremes.end());
    result["smallest_token"] = *low;
    result["largest_token"] = *high;
  }
  return result;
}

std::string data_table(const nlohmann::json& inspected) {
  std::string text;
  for (const auto& [key, value] : inspected.items())
    text += fmt::format("{:<14}  {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  return text;
}

}  // namespace tessera::hub
