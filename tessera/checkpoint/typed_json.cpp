#include "tessera/checkpoint/typed_json.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"

namespace tessera::checkpoint {
namespace {

using nlohmann::json;

std::int64_t integer(const json& value, const std::string& what, const std::string& where) {
  constexpr auto largest = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const bool fits = value.is_number_unsigned() ? value.get<std::uint64_t>() <= largest
                                               : value.is_number_integer() && value.get<std::int64_t>() >= 0;
  if (!fits)
    throw InputError("{}: {}: expected an integer from 0 to 2^63 - 1, got {}", where, what, base::shown(value));
  return value.get<std::int64_t>();
}

}  // namespace

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

std::string shape_text(const std::vector<std::int64_t>& dims) {
  constexpr std::size_t kShown = 8;
  const std::size_t count = std::min(dims.size(), kShown);
  return fmt::format("[{}{}]", fmt::join(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(count), ", "),
                     count < dims.size() ? ", ..." : "");
}

std::int64_t checked_product(const std::vector<std::int64_t>& dims, std::int64_t unit, const std::string& where) {
  std::int64_t product = unit;
  // Skips zeros, because the product of the other dimensions must also fit into 64 bits.
  for (const std::int64_t dim : dims)
    if (dim < 0 || __builtin_mul_overflow(product, std::max<std::int64_t>(dim, 1), &product))
      throw InputError("{}: the shape {} is impossible", where, shape_text(dims));
  return std::find(dims.begin(), dims.end(), 0) == dims.end() ? product : 0;
}

}  // namespace tessera::checkpoint
