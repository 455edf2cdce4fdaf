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
#include "tessera/settings/text/number_rules.h"
#include "tessera/settings/text/step_times.h"

namespace tessera::settings {

using nlohmann::json;

inline constexpr double kMax32 = 2147483647.0;

template <typename E>
struct Word {
  E value;
  std::string_view name;
};
// The words of an enumeration.
template <typename E>
inline constexpr auto kWords = nullptr;
template <>
inline constexpr auto kWords<Backend> =
    std::array{Word{Backend::local, "local"}, Word{Backend::mpi, "mpi"}, Word{Backend::nccl, "nccl"}};
template <>
inline constexpr auto kWords<train::RateShape> =
    std::array{Word{train::RateShape::constant, "constant"}, Word{train::RateShape::cosine, "cosine"},
               Word{train::RateShape::linear, "linear"}, Word{train::RateShape::wsd, "wsd"}};
template <>
inline constexpr auto kWords<train::DecayShape> =
    std::array{Word{train::DecayShape::linear, "linear"}, Word{train::DecayShape::sqrt, "sqrt"},
               Word{train::DecayShape::cosine, "cosine"}};
template <>
inline constexpr auto kWords<ReduceOrder> =
    std::array{Word{ReduceOrder::sequential, "sequential"}, Word{ReduceOrder::hierarchical, "hierarchical"}};
template <>
inline constexpr auto kWords<GemmKernels> =
    std::array{Word{GemmKernels::automatic, "auto"}, Word{GemmKernels::native, "native"}};
template <>
inline constexpr auto kWords<Moments> = std::array{Word{Moments::fp32, "fp32"}, Word{Moments::bf16, "bf16"}};
template <>
inline constexpr auto kWords<Masters> =
    std::array{Word{Masters::automatic, "auto"}, Word{Masters::fp32, "fp32"}, Word{Masters::split, "split"}};
template <>
inline constexpr auto kWords<OptimizerRule> =
    std::array{Word{OptimizerRule::adamw, "adamw"}, Word{OptimizerRule::muon, "muon"}};
template <>
inline constexpr auto kWords<ops::MuonScale> =
    std::array{Word{ops::MuonScale::moonshot, "moonshot"}, Word{ops::MuonScale::original, "original"}};
template <>
inline constexpr auto kWords<RecomputeSetting> =
    std::array{Word{RecomputeSetting::none, "none"}, Word{RecomputeSetting::selective, "selective"},
               Word{RecomputeSetting::full, "full"}, Word{RecomputeSetting::automatic, "auto"}};
template <>
inline constexpr auto kWords<quant::DType> =
    std::array{Word{quant::DType::fp32, "fp32"}, Word{quant::DType::bf16, "bf16"}, Word{quant::DType::fp64, "fp64"}};
template <>
inline constexpr auto kWords<nn::Fp8Scaling> =
    std::array{Word{nn::Fp8Scaling::delayed, "delayed"}, Word{nn::Fp8Scaling::current, "current"}};
template <>
inline constexpr auto kWords<nn::GradientRounding> =
    std::array{Word{nn::GradientRounding::stochastic, "stochastic"}, Word{nn::GradientRounding::nearest, "nearest"}};
template <>
inline constexpr auto kWords<quant::Fp8Recipe> =
    std::array{Word{quant::Fp8Recipe::hybrid, "hybrid"}, Word{quant::Fp8Recipe::e4m3, "e4m3"}};
template <>
inline constexpr auto kWords<quant::AmaxChoice> =
    std::array{Word{quant::AmaxChoice::newest, "newest"}, Word{quant::AmaxChoice::greatest, "greatest"}};

template <typename E, std::size_t count>
constexpr auto named(const E (&values)[count]) {
  std::array<Word<E>, count> words{};
  for (std::size_t i = 0; i < count; ++i) words[i] = {values[i], name_of(values[i])};
  return words;
}
template <>
inline constexpr auto kWords<Lookup> = named({Lookup::automatic, Lookup::gather, Lookup::rows});
template <>
inline constexpr auto kWords<nn::MoeAux> = named({nn::MoeAux::layer, nn::MoeAux::pooled});
template <>
inline constexpr auto kWords<quant::Format> = named({quant::Format::bf16, quant::Format::fp8, quant::Format::fp8_block,
                                                     quant::Format::mxfp8, quant::Format::nvfp4});

template <typename E>
std::string_view word_of(E value) {
  for (const auto& word : kWords<E>)
    if (word.value == value) return word.name;
  throw Error("a setting holds value {}, which has no name", static_cast<int>(value));
}

[[noreturn]] inline void refuse(const std::string& where, const json& value, const std::string& expected) {
  throw InputError("{}: got {}, expected {}", where, base::shown(value), expected);
}

inline std::string describe(const Limits& range, const std::string& kind) {
  const auto number = [](double x) { return fmt::format("{}", x); };
  std::string text = kind;
  const double none = std::numeric_limits<double>::max();
  if (range.low != -none) text += (range.open_low ? " above " : " of at least ") + number(range.low);
  if (range.high < kMax32) text += (range.open_high ? " and below " : " and at most ") + number(range.high);
  if (range.high == kMax32) text += " and at most 2147483647";
  return text;
}

inline void check_range(double value, const Limits& range, const json& got, const std::string& where,
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
inline void read(const std::string& text, const std::string& where, std::vector<base::NameRule<double>>& to) {
  to = parse_number_rules(text, where);
}
inline void read(const std::string& text, const std::string& where, std::vector<base::NameRule<OptimizerRule>>& to) {
  to = base::parse_name_rules(text, where, "RULE", [](std::string_view value) {
    for (const auto& word : kWords<OptimizerRule>)
      if (word.name == value) return word.value;
    throw InputError("got '{}', expected adamw or muon", value);
  });
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
  for (const auto& word : kWords<E>) {
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
            if constexpr (std::is_same_v<T, std::optional<double>>) return json_of_text<double>(words[0]);
            return words[0];
          },
          .is_list = is_list,
          .is_switch = std::is_same_v<T, bool> || std::is_same_v<T, std::optional<bool>>,
          .may_be_empty =
              std::is_same_v<T, FormatRules> || std::is_same_v<T, NumberRules> || std::is_same_v<T, OptimizerRules>};
}

}  // namespace tessera::settings
