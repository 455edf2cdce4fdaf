// Typed access to JSON that came from a file. Whatever is wrong is an InputError that names the file and the field.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// `where` names the file in messages. Errors: not JSON, an object with the same key twice.
nlohmann::json parse_json(std::string_view text, const std::string& where);

// The member `key` of the object `json`. Errors: not an object, no such member.
const nlohmann::json& member(const nlohmann::json& json, const std::string& key, const std::string& where);
// The same with a type. Errors: another type; an integer below 0 or beyond 63 bits.
std::int64_t integer_member(const nlohmann::json& json, const std::string& key, const std::string& where);
std::string string_member(const nlohmann::json& json, const std::string& key, const std::string& where);
const nlohmann::json& array_member(const nlohmann::json& json, const std::string& key, const std::string& where);

// Integers of an array, each from 0 to 2^63 - 1. `what` names the array.
std::vector<std::int64_t> integers(const nlohmann::json& json, const std::string& what, const std::string& where);

// Product of dimensions times `unit`, or an InputError when it does not fit 63 bits. Every factor at least 0.
std::int64_t checked_product(const std::vector<std::int64_t>& dims, std::int64_t unit, const std::string& where);

}  // namespace tessera::checkpoint
