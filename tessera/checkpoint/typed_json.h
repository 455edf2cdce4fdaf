// Typed access to JSON that was read from a file. Every fault is an InputError with the file and the field.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::checkpoint {

// Returns the member `key` of the object `json`. Throws InputError if `json` is not an object or the member is missing.
const nlohmann::json& member(const nlohmann::json& json, const std::string& key, const std::string& where);
// Return a member of a given type. Throw InputError for another type, or for an integer below 0 or above 2^63 - 1.
std::int64_t integer_member(const nlohmann::json& json, const std::string& key, const std::string& where);
std::string string_member(const nlohmann::json& json, const std::string& key, const std::string& where);
const nlohmann::json& array_member(const nlohmann::json& json, const std::string& key, const std::string& where);

// Returns the integers of an array, each from 0 to 2^63 - 1. `what` names the array in messages.
std::vector<std::int64_t> integers(const nlohmann::json& json, const std::string& what, const std::string& where);

// Returns the dimensions for messages, such as "[2, 3]". At most 8 dimensions are shown.
std::string shape_text(const std::vector<std::int64_t>& dims);

// Returns the product of the dimensions times `unit`. Throws InputError if the product does not fit in 63 bits. Every
// factor must be at least 0.
std::int64_t checked_product(const std::vector<std::int64_t>& dims, std::int64_t unit, const std::string& where);

}  // namespace tessera::checkpoint
