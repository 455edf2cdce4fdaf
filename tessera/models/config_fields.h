// Reads a config.json field by field.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace tessera::models {

// Checked access to the fields of a JSON object. A field that is null is treated as absent. The JSON object must
// outlive the Fields. Used by one thread at a time. Errors are InputError with the file, the field, its value and the
// expected value.
class Fields {
 public:
  // where: name of the file. path: the object's path in the file, such as "rope_scaling.".
  Fields(const nlohmann::json& object, std::string where, std::string path = "")
      : object_(object), where_(std::move(where)), path_(std::move(path)) {}

  const std::string& where() const { return where_; }
  // Returns the names of the fields that were looked up.
  const std::set<std::string>& read() const { return read_; }
  // Returns null if the field is absent.
  const nlohmann::json* find(const char* name) const;
  // Returns whether the field is present and null.
  bool is_null(const char* name) const;
  [[noreturn]] void fail(const char* name, const std::string& expected) const;

  // The range of a size. The limits of a model's sizes are in size_limits.h.
  struct Range {
    std::int64_t least = 1, most = (std::int64_t{1} << 31) - 1;
  };
  // Returns the integer in a field, which must be in the range.
  std::int64_t size(const char* name, Range range) const;
  std::int64_t size(const char* name) const { return size(name, Range()); }
  std::int64_t size_or(const char* name, std::int64_t fallback, Range range) const {
    return find(name) ? size(name, range) : fallback;
  }
  std::int64_t size_or(const char* name, std::int64_t fallback) const { return size_or(name, fallback, Range()); }
  // Returns the finite number in a field. The number must be above 0, or at least 0 if `zero_allowed` is true.
  double number(const char* name, bool zero_allowed = false) const;
  double number_or(const char* name, double fallback, bool zero_allowed = false) const {
    return find(name) ? number(name, zero_allowed) : fallback;
  }
  bool flag_or(const char* name, bool fallback) const;

  // Throws if the flag is true. Called for options that are not supported. The message contains `reason`.
  void require_false(const char* name, const std::string& reason) const;
  // Returns the object in field `name`, or null if the field is absent. Throws if the field is not an object.
  const nlohmann::json* object(const char* name) const;

 private:
  const nlohmann::json& object_;
  std::string where_, path_;
  mutable std::set<std::string> read_;
};

}  // namespace tessera::models
