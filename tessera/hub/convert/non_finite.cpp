#include "tessera/hub/convert/non_finite.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#include "tessera/base/error.h"
#include "tessera/quant/bfloat16.h"

namespace tessera::hub {
namespace {

template <typename T>
void count_in(const std::byte* data, std::int64_t elements, std::int64_t& nan, std::int64_t& infinite) {
  for (std::int64_t i = 0; i < elements; ++i) {
    T value;
    std::memcpy(&value, data + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    if constexpr (std::is_same_v<T, quant::bfloat16>) {
      nan += std::isnan(static_cast<float>(value));
      infinite += std::isinf(static_cast<float>(value));
    } else {
      nan += std::isnan(value);
      infinite += std::isinf(value);
    }
  }
}

}  // namespace

void NonFiniteCounts::count(const std::string& tensor, const std::byte* data, quant::DType dtype,
                            std::int64_t elements) {
  std::int64_t nan = 0, infinite = 0;
  switch (dtype) {
    case quant::DType::fp64:
      count_in<double>(data, elements, nan, infinite);
      break;
    case quant::DType::fp32:
      count_in<float>(data, elements, nan, infinite);
      break;
    case quant::DType::bf16:
      count_in<quant::bfloat16>(data, elements, nan, infinite);
      break;
    default:
      throw Error("non-finite values of '{}': {} is not a floating type", tensor, name_of(dtype));
  }
  if (nan + infinite > 0) add(tensor, nan, infinite);
}

void NonFiniteCounts::add(const std::string& tensor, std::int64_t nan, std::int64_t infinite) {
  const auto [at, is_new] = where_.try_emplace(tensor, counts_.size());
  if (is_new) counts_.push_back({.tensor = tensor});
  counts_[at->second].nan += nan;
  counts_[at->second].infinite += infinite;
}

nlohmann::json NonFiniteCounts::to_json() const {
  nlohmann::json all = nlohmann::json::array();
  for (const Counts& counts : counts_)
    if (counts.nan + counts.infinite > 0)
      all.push_back({{"tensor", counts.tensor}, {"nan", counts.nan}, {"infinite", counts.infinite}});
  return all;
}

std::vector<std::int64_t> NonFiniteCounts::numbers() const {
  std::vector<std::int64_t> numbers;
  for (const Counts& counts : counts_) numbers.insert(numbers.end(), {counts.nan, counts.infinite});
  return numbers;
}

void NonFiniteCounts::set_numbers(const std::vector<std::int64_t>& numbers) {
  TESSERA_CHECK(numbers.size() == 2 * counts_.size(), "{} numbers for {} tensors", numbers.size(), counts_.size());
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    counts_[i].nan = numbers[2 * i];
    counts_[i].infinite = numbers[2 * i + 1];
  }
}

std::vector<std::string> non_finite_lines(const nlohmann::json& counts) {
  std::vector<std::string> lines;
  for (const nlohmann::json& tensor : counts)
    lines.push_back(fmt::format("tensor '{}': {} values are NaN, {} are infinite", tensor["tensor"].get<std::string>(),
                                tensor["nan"].get<std::int64_t>(), tensor["infinite"].get<std::int64_t>()));
  return lines;
}

}  // namespace tessera::hub
