#include "tessera/checkpoint/typed_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/printable.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

std::int64_t integer(const json& value, const std::string& what, const std::string& where) {
  constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= largest
                                               : value.is_number_integer() && value.get<std::int64_t>() >= 0;
  if (!fits) throw InputError("{}: {}: expected an integer from 0 to 2^63 - 1, got {}", where, what, value.dump());
  return value.get<std::int64_t>();
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  std::vector<std::set<std::string>> keys;  // for each object that the parser is in: its keys so far
  std::string twice;
  const auto watch = [&](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      twice = value.get<std::string>();
    return true;
  };
  json result;
  try {
    result = json::parse(text, watch);
  } catch (const json::exception& error) {
    throw InputError("{}: expected JSON: {}", where, base::printable(error.what()));
  }
  if (!twice.empty()) throw InputError("{}: the key '{}' appears twice in one object", where, base::printable(twice));
  return result;
}

const json& member(const json& object, const std::string& key, const std::string& where) {
  if (!object.is_object()) throw InputError("{}: expected an object with '{}'", where, key);
  const auto found = object.find(key);
  if (found == object.end()) throw InputError("{}: '{}' is missing", where, key);
  return *found;
}

std::int64_t integer_member(const json& object, const std::string& key, const std::string& where) {
  return integer(member(object, key, where), key, where);
}

std::string string_member(const json& object, const std::string& key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_string()) throw InputError("{}: '{}': expected a string", where, key);
  return value.get<std::string>();
}

const json& array_member(const json& object, const std::string& key, const std::string& where) {
  const json& value = member(object, key, where);
  if (!value.is_array()) throw InputError("{}: '{}': expected an array", where, key);
  return value;
}

std::vector<std::int64_t> integers(const json& array, const std::string& what, const std::string& where) {
  if (!array.is_array()) throw InputError("{}: {}: expected an array of integers", where, what);
  std::vector<std::int64_t> values;
  values.reserve(array.size());
  for (const json& value : array) values.push_back(integer(value, what, where));
  return values;
}

std::int64_t checked_product(const std::vector<std::int64_t>& dims, std::int64_t unit, const std::string& where) {
  std::int64_t product = unit;
  // Skips zeros, because the product of the other dimensions must also fit into 64 bits.
  for (const std::int64_t dim : dims)
    if (dim < 0 || __builtin_mul_overflow(product, std::max<std::int64_t>(dim, 1), &product))
      throw InputError("{}: the shape [{}] is impossible", where, fmt::join(dims, ", "));
  return std::find(dims.begin(), dims.end(), 0) == dims.end() ? product : 0;
}

}  // namespace tessera::checkpoint
