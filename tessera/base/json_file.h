// Reads JSON from files and from other processes. All JSON that the program did not make itself is read here.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::base {

// The deepest nesting of arrays and objects that is accepted. Files of the program nest at most 10 levels. The limit
// bounds the recursion of functions that copy, compare and print values.
inline constexpr int kMaxJsonDepth = 100;

// Returns the text as JSON. `where` names the source in messages. Throws InputError if:
// - the text is not valid JSON; the message contains the line and column;
// - an object has the same key twice, because JSON parsers keep only one of the two values;
// - the text nests deeper than kMaxJsonDepth. This is found before the nested values are built.
nlohmann::json parse_json(std::string_view text, const std::string& where);
// Does the same, and keeps the order of the keys.
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where);

// Returns whether the text is valid JSON, of any depth. Builds no values.
bool is_json(std::string_view text);

// Returns the whole file as JSON. Throws InputError if the file cannot be read or has more than 1 GiB, and the errors
// of parse_json.
nlohmann::json read_json_file(const std::filesystem::path& path);

// Returns the text of a value for an error message: compact JSON, at most 80 bytes. Takes a bounded time for values of
// any size.
std::string shown(const nlohmann::json& value);

}  // namespace tessera::base
