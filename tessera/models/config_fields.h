// Reading a config.json field by field.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace tessera::models {

// An object of the file whose fields are read with checks. A field that is null counts as absent. The object outlives
// this. InputError that names file, field, value and expectation.
class Fields {
 public:
  // where: the file. path: of the object in it, as "rope_scaling.".
  Fields(const nlohmann::json& object, std::string where, std::string path = "")
      : object_(object), where_(std::move(where)), path_(std::move(path)) {}

  const std::string& where() const { return where_; }
  // Null where the field is absent.
  const nlohmann::json* find(const char* name) const;
  // Returns whether the field is there and null.
  bool is_null(const char* name) const;
  [[noreturn]] void fail(const char* name, const std::string& expected) const;

  // An integer from 1 to 2^31 - 1.
  std::int64_t size(const char* name) const;
  std::int64_t size_or(const char* name, std::int64_t fallback) const { return find(name) ? size(name) : fallback; }
  // A finite number above 0, or 0 too.
  double number(const char* name, bool zero_allowed = false) const;
  double number_or(const char* name, double fallback, bool zero_allowed = false) const {
    return find(name) ? number(name, zero_allowed) : fallback;
  }
  bool flag_or(const char* name, bool fallback) const;

  // For options that the model does not have here: fails where the flag is true.
  void require_false(const char* name, const std::string& reason) const;
  // An object in the object; null where the field is absent. Fails where it is anything else.
  const nlohmann::json* object(const char* name) const;

 private:
  const nlohmann::json& object_;
  std::string where_, path_;
};

}  // namespace tessera::models
