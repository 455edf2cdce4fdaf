#include "tessera/models/config_fields.h"

#include <fmt/format.h>

#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"

namespace tessera::models {

using nlohmann::json;

const json* Fields::find(const char* name) const {
  read_.insert(name);
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

bool Fields::is_null(const char* name) const {
  read_.insert(name);
  const auto at = object_.find(name);
  return at != object_.end() && at->is_null();
}

void Fields::fail(const char* name, const std::string& expected) const {
  const auto at = object_.find(name);
  throw InputError("{}: field '{}{}' is {}, expected {}", where_, path_, name,
                   at == object_.end() ? "missing" : base::shown(*at), expected);
}

std::int64_t Fields::size(const char* name, Range range) const {
  const json* value = find(name);
  const std::string expected = fmt::format("an integer from {} to {}", range.least, range.most);
  if (!value || !value->is_number_integer()) fail(name, expected);
  const bool fits = value->is_number_unsigned() ? value->get<std::uint64_t>() <= static_cast<std::uint64_t>(range.most)
                                                : value->get<std::int64_t>() <= range.most;
  if (!fits || value->get<std::int64_t>() < range.least) fail(name, expected);
  return value->get<std::int64_t>();
}

double Fields::number(const char* name, bool zero_allowed) const {
  const json* value = find(name);
  const auto expected = zero_allowed ? "a number, 0 or more" : "a number above 0";
  if (!value || !value->is_number()) fail(name, expected);
  const double number = value->get<double>();
  if (!std::isfinite(number) || number < 0 || (number == 0 && !zero_allowed)) fail(name, expected);
  return number;
}

bool Fields::flag_or(const char* name, bool fallback) const {
  const json* value = find(name);
  if (value && !value->is_boolean()) fail(name, "true or false");
  return value ? value->get<bool>() : fallback;
}

void Fields::require_false(const char* name, const std::string& reason) const {
  if (flag_or(name, false)) fail(name, "false: " + reason);
}

const json* Fields::object(const char* name) const {
  const json* value = find(name);
  if (value && !value->is_object()) fail(name, "an object or null");
  return value;
}

}  // namespace tessera::models
