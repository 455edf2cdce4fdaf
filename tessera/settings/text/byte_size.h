// Parses byte sizes of flags, such as "300MB".
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::settings {

// Parses "5GB", "300MB", "64KB" (powers of 1000), "2GiB" (powers of 1024) or a plain number of bytes. Throws InputError
// for other texts and for 0.
std::int64_t parse_byte_size(std::string_view text);
// Like the function above. Error messages name `flag`.
std::int64_t parse_byte_size(const std::string& text, const std::string& flag);

// The size of an arena in bytes. nullopt: schedule::plan_within chooses the size.
using Budget = std::optional<std::int64_t>;
// Returns schedule::kMinimum for "min", nullopt for "auto", and the result of parse_byte_size for other texts. Throws
// an InputError that names `flag`.
Budget parse_budget(const std::string& text, const std::string& flag);

}  // namespace tessera::settings
