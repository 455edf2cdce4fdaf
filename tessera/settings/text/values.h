// Values of settings from and to JSON. Only settings.cpp, which has the table of settings, includes this file.
#pragma once
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/text/printable.h"
#include "tessera/settings/places.h"
#include "tessera/settings/settings.h"
#include "tessera/settings/text/step_times.h"

namespace tessera::settings {

using nlohmann::json;
using quant::DType;
using quant::Format;

inline constexpr double kMax32 = 2147483647.0;

template <typename E>
struct Word {
  E value;
  std::string_view name;
};
inline constexpr std::array kBackends{Word<Backend>{Backend::local, "local"}, Word<Backend>{Backend::mpi, "mpi"},
                                      Word<Backend>{Backend::nccl, "nccl"}};
inline constexpr std::array kRateShapes{Word<train::RateShape>{train::RateShape::constant, "constant"},
                                        Word<train::RateShape>{train::RateShape::cosine, "cosine"}};
inline constexpr std::array kReduceOrders{Word<ReduceOrder>{ReduceOrder::sequential, "sequential"},
                                          Word<ReduceOrder>{ReduceOrder::hierarchical, "hierarchical"}};
inline constexpr std::array kRecomputes{Word<RecomputeSetting>{RecomputeSetting::none, "none"},
                                        Word<RecomputeSetting>{RecomputeSetting::selective, "selective"},
                                        Word<RecomputeSetting>{RecomputeSetting::full, "full"},
                                        Word<RecomputeSetting>{RecomputeSetting::automatic, "auto"}};
inline constexpr std::array kLookups{Word<Lookup>{Lookup::automatic, name_of(Lookup::automatic)},
                                     Word<Lookup>{Lookup::gather, name_of(Lookup::gather)},
                                     Word<Lookup>{Lookup::rows, name_of(Lookup::rows)}};
inline constexpr std::array kDTypes{Word<DType>{DType::fp32, "fp32"}, Word<DType>{DType::bf16, "bf16"},
                                    Word<DType>{DType::fp64, "fp64"}};

constexpr Word<Format> word_of_format(Format format) {
  return {format, name_of(format)};
}
inline constexpr std::array kFormats{word_of_format(Format::bf16), word_of_format(Format::fp8),
                                     word_of_format(Format::fp8_block), word_of_format(Format::mxfp8),
                                     word_of_format(Format::nvfp4)};

inline constexpr std::array kFp8Scalings{Word<nn::Fp8Scaling>{nn::Fp8Scaling::delayed, "delayed"},
                                         Word<nn::Fp8Scaling>{nn::Fp8Scaling::current, "current"}};
inline constexpr std::array kFp8Recipes{Word<quant::Fp8Recipe>{quant::Fp8Recipe::hybrid, "hybrid"},
                                        Word<quant::Fp8Recipe>{quant::Fp8Recipe::e4m3, "e4m3"}};
inline constexpr std::array kAmaxChoices{Word<quant::AmaxChoice>{quant::AmaxChoice::newest, "newest"},
                                         Word<quant::AmaxChoice>{quant::AmaxChoice::greatest, "greatest"}};

constexpr const auto& words_of(nn::Fp8Scaling) {
  return kFp8Scalings;
}
constexpr const auto& words_of(quant::Fp8Recipe) {
  return kFp8Recipes;
}
constexpr const auto& words_of(quant::AmaxChoice) {
  return kAmaxChoices;
}
inline constexpr std::array kMoeAuxes{Word<nn::MoeAux>{nn::MoeAux::layer, name_of(nn::MoeAux::layer)},
                                      Word<nn::MoeAux>{nn::MoeAux::pooled, name_of(nn::MoeAux::pooled)}};

constexpr const auto& words_of(nn::MoeAux) {
  return kMoeAuxes;
}
constexpr const auto& words_of(Backend) {
  return kBackends;
}
constexpr const auto& words_of(train::RateShape) {
  return kRateShapes;
}
constexpr const auto& words_of(ReduceOrder) {
  return kReduceOrders;
}
constexpr const auto& words_of(RecomputeSetting) {
  return kRecomputes;
}
constexpr const auto& words_of(Lookup) {
  return kLookups;
}
constexpr const auto& words_of(DType) {
  return kDTypes;
}
constexpr const auto& words_of(Format) {
  return kFormats;
}

template <typename E>
std::string_view word_of(E value) {
  for (const auto& word : words_of(value))
    if (word.value == value) return word.name;
  throw Error("a setting holds value {}, which has no name", static_cast<int>(value));
}

[[noreturn]] inline void refuse(const std::string& where, const json& value, const std::string& expected) {
  throw InputError("{}: got {}, expected {}", where, base::shown(value), expected);
}

inline std::string describe(const Range& range, const std::string& kind) {
  const auto number = [](double x) { return fmt::format("{}", x); };
  std::string text = kind;
  const double none = std::numeric_limits<double>::max();
  if (range.low != -none) text += (range.open_low ? " above " : " of at least ") + number(range.low);
  if (range.high < kMax32) text += (range.open_high ? " and below " : " and at most ") + number(range.high);
  if (range.high == kMax32) text += " and at most 2147483647";
  return text;
}

inline void check_range(double value, const Range& range, const json& got, const std::string& where,
                        const std::string& kind) {
  const bool low = range.open_low ? value > range.low : value >= range.low;
  const bool high = range.open_high ? value < range.high : value <= range.high;
  if (!low || !high || !std::isfinite(value)) refuse(where, got, describe(range, kind));
}

inline void put(std::string& to, const json& value, const Place& at) {
  if (at.range.low == 0 && value.is_number_unsigned()) {
    to = value.dump();
    return;
  }
  if (!value.is_string() || (value.get_ref<const std::string&>().empty() && !at.may_be_empty))
    refuse(at.where, value, at.may_be_empty ? "a text" : "a non-empty text");
  if (const auto& text = value.get_ref<const std::string&>(); base::printable(text) != text)
    refuse(at.where, value, "a text without control characters");
  to = value.get<std::string>();
}
inline void put(std::vector<std::string>& to, const json& value, const Place& at) {
  std::vector<std::string> words;
  for (const json& word : value.is_array() ? value : json::array({value})) {
    if (!word.is_string() && !word.is_number()) refuse(at.where, value, "PREFIX, or a list W1 PREFIX1 W2 PREFIX2 ...");
    words.push_back(word.is_string() ? word.get<std::string>() : word.dump());
    if (words.back().empty()) refuse(at.where, value, "prefixes that are not empty");
    if (base::printable(words.back()) != words.back()) refuse(at.where, value, "prefixes without control characters");
  }
  to = std::move(words);
}
inline void read(const std::string& text, const std::string& where, std::int64_t& to) {
  to = parse_byte_size(text, where);
}
inline void read(const std::string& text, const std::string& where, Budget& to) {
  to = parse_budget(text, where);
}
inline void read(const std::string& text, const std::string& where, std::vector<shard::FormatRule>& to) {
  to = shard::parse_format_rules(text, where);
}
inline void read(const std::string& text, const std::string& where, std::map<std::int64_t, int>& to) {
  to = parse_step_times(text, where);
}
template <typename T>
void put(Written<T>& to, const json& value, const Place& at) {
  put(to.text, value, at);
  read(to.text, at.where, to.value);
}
inline void put(PlaceMap& to, const json& value, const Place& at) {
  std::string text;
  put(text, value, at);
  to = read_slots(text, at.where);
}
inline void put(bool& to, const json& value, const Place& at) {
  if (!value.is_boolean() && value != "on" && value != "off") refuse(at.where, value, "on or off");
  to = value.is_boolean() ? value.get<bool>() : value == "on";
}
inline void put(std::int64_t& to, const json& value, const Place& at) {
  if (!value.is_number_integer()) refuse(at.where, value, describe(at.range, "an integer"));
  check_range(value.get<double>(), at.range, value, at.where, "an integer");
  to = value.get<std::int64_t>();
}
inline void put(std::uint64_t& to, const json& value, const Place& at) {
  const bool negative = value.is_number_integer() && !value.is_number_unsigned() && value.get<std::int64_t>() < 0;
  if (!value.is_number_integer() || negative) refuse(at.where, value, "an integer from 0 to 18446744073709551615");
  to = value.get<std::uint64_t>();
}
inline void put(int& to, const json& value, const Place& at) {
  std::int64_t number = 0;
  put(number, value, at);
  to = static_cast<int>(number);
}
inline void put(double& to, const json& value, const Place& at) {
  if (!value.is_number()) refuse(at.where, value, describe(at.range, "a number"));
  check_range(value.get<double>(), at.range, value, at.where, "a number");
  to = value.get<double>();
}
template <typename E>
requires std::is_enum_v<E>
void put(E& to, const json& value, const Place& at) {
  std::string names;
  for (const auto& word : words_of(E{})) {
    if (value.is_string() && value.get_ref<const std::string&>() == word.name) {
      to = word.value;
      return;
    }
    names += (names.empty() ? "" : ", ") + std::string(word.name);
  }
  refuse(at.where, value, "one of " + names);
}
template <typename E>
void put(std::optional<E>& to, const json& value, const Place& at) {
  put(to.emplace(), value, at);
}

template <typename T>
json json_of_text(const std::string& text) {
  T number{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  const bool whole = error == std::errc{} && stopped == end && !text.empty();
  return whole && std::isfinite(static_cast<double>(number)) ? json(number) : json(text);
}

template <typename T>
requires(!std::is_enum_v<T>) json get(const T& value) {
  return value;
}
template <typename E>
requires std::is_enum_v<E> json get(E value) {
  return word_of(value);
}
template <typename E>
json get(const std::optional<E>& value) {
  return value ? get(*value) : json();
}
template <typename T>
json get(const Written<T>& value) {
  return value.text;
}
inline json get(const PlaceMap& value) {
  return to_text(value);
}

template <auto... path>
auto& member_of(auto& config) {
  return (config.*....*path);
}
// Returns the access to the member at `path`, for example field<&TrainConfig::products, &nn::ProductOptions::margin>().
template <auto... path>
constexpr Field field() {
  using T = std::remove_cvref_t<decltype(member_of<path...>(std::declval<TrainConfig&>()))>;
  constexpr bool is_list = std::is_same_v<T, std::vector<std::string>>;
  return {.put = [](TrainConfig& to, const json& value, const Place& at) { put(member_of<path...>(to), value, at); },
          .get = [](const TrainConfig& from) { return get(member_of<path...>(from)); },
          .copy = [](TrainConfig& to, const TrainConfig& from) { member_of<path...>(to) = member_of<path...>(from); },
          .json_of = [](const std::vector<std::string>& words) -> json {
            if constexpr (is_list) return words;
            if constexpr (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) return json_of_text<T>(words[0]);
            return words[0];
          },
          .is_list = is_list,
          .is_switch = std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>};
}

}  // namespace tessera::settings
