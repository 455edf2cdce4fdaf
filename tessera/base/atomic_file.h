// Writes files that are either complete or unchanged.
#pragma once
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace tessera::base {

// Writes a file so that it is either complete or unchanged: writes a temporary file, syncs it, renames it to `path`,
// and syncs the folder. Throws an Error that names the file and the cause.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);
// Writes `value` as indented JSON with write_file_atomically. Numbers that are not finite are written as in
// finite_json.
void write_json_atomically(const std::filesystem::path& path, const nlohmann::ordered_json& value);

// Replaces numbers that are not finite by the texts "NaN", "Infinity" and "-Infinity", as in metrics.jsonl, because
// JSON cannot represent them.
nlohmann::ordered_json finite_json(nlohmann::ordered_json value);

}  // namespace tessera::base
