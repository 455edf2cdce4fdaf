// The output of `tessera inspect` for a data file: PREFIX.idx and PREFIX.bin.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::hub {

// Returns whether `path` names a data file: PREFIX, PREFIX.idx or PREFIX.bin of an existing PREFIX.idx.
bool is_data_path(const std::filesystem::path& path);

// Returns {"data", "token_type", "tokens", "sequences", "documents", "smallest_token", "largest_token", "index_xxh64"}.
// "smallest_token" and "largest_token" are null for an empty file. Reads all tokens once. Throws InputError for a
// damaged file.
nlohmann::json inspect_data(const std::filesystem::path& path);

// Returns the result of inspect_data as lines of text.
std::string data_table(const nlohmann::json& inspected);

}  // namespace tessera::hub
