// What `tessera inspect` shows of a data file: PREFIX.idx and PREFIX.bin.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::run {

// Whether `path` names a data file: PREFIX, PREFIX.idx or PREFIX.bin of an existing PREFIX.idx.
bool is_data_path(const std::filesystem::path& path);

// {"data", "token_type", "tokens", "sequences", "documents", "smallest_token", "largest_token", "index_xxh64"}; the two
// tokens are null for an empty file. Reads everything once. Errors: InputError for a file that is not whole.
nlohmann::json inspect_data(const std::filesystem::path& path);

// The same as lines for people.
std::string data_table(const nlohmann::json& inspected);

}  // namespace tessera::run
