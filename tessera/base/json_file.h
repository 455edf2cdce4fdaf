// Reads JSON files that people write.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

namespace tessera::base {

// Returns the whole file as JSON. Throws InputError if the file cannot be read or is not valid JSON; the message
// contains the file, and the line and column. Throws InputError if an object has the same key twice, because JSON
// parsers keep only one of the two values.
nlohmann::json read_json_file(const std::filesystem::path& path);

// Returns the text of a value for an error message: compact JSON, at most 80 bytes.
std::string shown(const nlohmann::json& value);

}  // namespace tessera::base
