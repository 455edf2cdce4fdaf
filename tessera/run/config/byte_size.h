// Bytes as a user writes them.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::run {

// "5GB", "300MB", "64KB" (powers of 1000), "2GiB" (of 1024) or plain bytes. Errors: InputError for anything else or 0.
std::int64_t parse_byte_size(std::string_view text);
// Its errors name `flag`.
std::int64_t parse_byte_size(const std::string& text, const std::string& flag);

// Bytes of an arena; none: schedule::plan_within chooses.
using Budget = std::optional<std::int64_t>;
// min: schedule::kMinimum; auto: none; else parse_byte_size. InputError naming `flag`.
Budget parse_budget(const std::string& text, const std::string& flag);

}  // namespace tessera::run
