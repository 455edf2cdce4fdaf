#include "tessera/hub/tokenizer/tokenizer_warnings.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "tessera/base/json_file.h"
#include "tessera/hub/tokenizer/tokenizer_files.h"

namespace tessera::hub {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// Returns null if the folder has no valid tokenizer.json.
json tokenizer_json(const fs::path& folder) {
  try {
    return base::read_json_file(folder / "tokenizer.json");
  } catch (const std::exception&) {
    return {};
  }
}

// The vocabulary of a tokenizer.json: ids by token, or a list of tokens with scores. Returns null without one.
json vocabulary_of(const json& tokenizer) {
  const json::json_pointer vocabulary("/model/vocab");
  return tokenizer.is_object() && tokenizer.contains(vocabulary) ? tokenizer.at(vocabulary) : json();
}

std::int64_t id_in(const json& value) {
  return value.is_number_integer() ? value.get<std::int64_t>() : -1;
}

// Returns the largest id plus 1, or 0 without a valid tokenizer.json.
std::int64_t entries_of(const fs::path& folder) {
  const json tokenizer = tokenizer_json(folder), vocabulary = vocabulary_of(tokenizer);
  std::int64_t entries = vocabulary.is_array() ? static_cast<std::int64_t>(vocabulary.size()) : 0;
  if (vocabulary.is_object())
    for (const json& id : vocabulary) entries = std::max(entries, 1 + id_in(id));
  if (entries == 0) return 0;
  for (const json& added : tokenizer.value("added_tokens", json::array()))
    if (added.is_object() && added.contains("id")) entries = std::max(entries, 1 + id_in(added["id"]));
  return entries;
}

// Models are often padded to multiples of 64 or 128, for each of several tp ranks.
bool is_padded_size(std::int64_t vocab_size, std::int64_t entries) {
  constexpr std::int64_t kMost = 1024, kShare = 4;
  return vocab_size <= entries + std::min(kMost, entries / kShare);
}

std::string size_warning(const fs::path& tokenizer, const ReadingModel& model) {
  const std::int64_t entries = tokenizer.empty() ? 0 : entries_of(tokenizer);
  if (entries == 0 || (entries <= model.vocab_size && is_padded_size(model.vocab_size, entries))) return "";
  return fmt::format("the model {} has a vocabulary of {}, but the tokenizer {} has {} entries, so {}", model.name,
                     model.vocab_size, tokenizer.string(), entries,
                     entries > model.vocab_size
                         ? fmt::format("the model cannot read text with the ids {} and above", model.vocab_size)
                         : fmt::format("the ids {} and above have no text", entries));
}

// Visits the data sets in order, with the flag that names them.
template <typename Visit>
void for_each_set(const std::vector<FlagData>& data, const Visit& visit) {
  for (const FlagData& flag : data)
    for (const std::string& prefix : prefixes_in(flag.blend)) visit(flag.flag, prefix);
}

void add_vocabularies(const std::vector<FlagData>& data, const ReadingModel& model, std::vector<std::string>& lines) {
  fs::path first = model.tokenizer;
  std::string owner = "that of the model";
  std::set<fs::path> compared;
  for_each_set(data, [&](const std::string& flag, const std::string& prefix) {
    const fs::path folder = tokenizer_beside(prefix);
    if (folder.empty()) return;
    if (first.empty()) {
      first = folder;
      owner = fmt::format("that beside {} {}", flag, prefix);
    }
    if (!compared.insert(folder).second || folder == first || !have_other_vocabularies(folder, first)) return;
    lines.push_back(fmt::format("the tokenizer beside {} differs from {}: {} and {} have other vocabularies, so {}",
                                flag, owner, folder.string(), first.string(),
                                model.tokenizer.empty() ? "the same ids are other words"
                                                        : "the model reads other words than it was trained on"));
  });
  if (std::string warning = size_warning(first, model); !warning.empty()) lines.push_back(std::move(warning));
}

void add_begin_ids(const std::vector<FlagData>& data, const ReadingModel& model, std::vector<std::string>& lines) {
  BeginIds first = model.begin;
  std::string owner = "the training data of the model";
  for_each_set(data, [&](const std::string& flag, const std::string& prefix) {
    const BeginIds ids = begin_ids_beside(prefix);
    if (!ids) return;
    if (!first) {
      first = ids;
      owner = fmt::format("{} {}", flag, prefix);
    }
    if (*ids != *first)
      lines.push_back(fmt::format("documents of {} {} begin with the ids [{}], but those of {} with [{}]", flag, prefix,
                                  fmt::join(*ids, ", "), owner, fmt::join(*first, ", ")));
  });
}

}  // namespace

bool have_other_vocabularies(const fs::path& one, const fs::path& other) {
  const json first = vocabulary_of(tokenizer_json(one)), second = vocabulary_of(tokenizer_json(other));
  return !first.is_null() && !second.is_null() && first != second;
}

std::vector<std::string> tokenizer_warnings(const std::vector<FlagData>& data, const ReadingModel& model) {
  std::vector<std::string> lines;
  add_vocabularies(data, model, lines);
  add_begin_ids(data, model, lines);
  return lines;
}

}  // namespace tessera::hub
