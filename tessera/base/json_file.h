// JSON files that people write.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>

namespace tessera::base {

// The whole file as JSON. InputError, naming the file, when it cannot be read, is not JSON (with line and column), or
// gives a key twice in one object (of two values one would be dropped silently).
nlohmann::json read_json_file(const std::filesystem::path& path);

// A value as it is shown in an error message: compact JSON, at most 80 bytes.
std::string shown(const nlohmann::json& value);

}  // namespace tessera::base
