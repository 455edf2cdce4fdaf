// The ids of the tokens that begin each document of a data set. They also begin the prompts of a model that was trained
// on this data. python/prepare_text.py stores them in meta.json beside the data; runs and checkpoints store them in
// their state.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace tessera::hub {

// Empty: a document begins with its text. nullopt: not known, so the tokenizer decides.
using BeginIds = std::optional<std::vector<std::int64_t>>;
inline constexpr const char* kBeginIds = "begin_ids";  // the key in meta.json, in config.json and in a checkpoint

// Reads the ids in an object. Returns nullopt if `stored` is not an object or does not have the key. Throws InputError,
// which names `where`, if the value is not a list of ids.
BeginIds begin_ids_in(const nlohmann::json& stored, const std::filesystem::path& where);

// Reads the ids of a data set from meta.json in the folder of its prefix. Returns nullopt if this file does not exist
// or is not a JSON object with the key, because other programs may write files with this name.
BeginIds begin_ids_beside(const std::string& prefix);

// Returns the ids of the sets of a blend. Returns nullopt if the ids of a set are not known, or if the ids differ.
BeginIds begin_ids_of_data(const std::vector<std::string>& blend);

}  // namespace tessera::hub
