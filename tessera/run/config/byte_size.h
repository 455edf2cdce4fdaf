// Byte sizes as users write them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::run {

// Parses "5GB", "300MB", "64KB" (powers of 1000), "2GiB" (powers of 1024) or a plain number of bytes. Throws InputError
// for anything else and for 0.
std::int64_t parse_byte_size(std::string_view text);
// Error messages name `flag`.
std::int64_t parse_byte_size(const std::string& text, const std::string& flag);

// Bytes of an arena; nullopt: schedule::plan_within chooses.
using Budget = std::optional<std::int64_t>;
// Returns schedule::kMinimum for min, nullopt for auto, and parse_byte_size for other texts. Throws InputError, which
// names `flag`.
Budget parse_budget(const std::string& text, const std::string& flag);

}  // namespace tessera::run
