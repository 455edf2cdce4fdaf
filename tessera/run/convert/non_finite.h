// Values of a conversion that are no finite numbers: they are converted, and named.
#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/quant/dtype.h"

namespace tessera::run {

// Counts by tensor, in the order in which the tensors come first.
class NonFiniteCounts {
 public:
  // Adds to the numbers of a tensor.
  void add(const std::string& tensor, std::int64_t nan, std::int64_t infinite);
  // Adds elements of a tensor. dtype: a floating type.
  void count(const std::string& tensor, const std::byte* data, quant::DType dtype, std::int64_t elements);
  // [{"tensor": NAME, "nan": COUNT, "infinite": COUNT}, ...]; empty: all values are finite.
  nlohmann::json to_json() const;
  // The numbers of all tensors, two for each: NaN, infinite. Ranks that have added the same tensors may sum theirs.
  std::vector<std::int64_t> numbers() const;
  void set_numbers(const std::vector<std::int64_t>& numbers);

 private:
  struct Counts {
    std::string tensor;
    std::int64_t nan = 0, infinite = 0;
  };
  std::vector<Counts> counts_;
  std::unordered_map<std::string, std::size_t> where_;  // in counts_
};

// A line for each tensor of NonFiniteCounts::to_json.
std::vector<std::string> non_finite_lines(const nlohmann::json& counts);

}  // namespace tessera::run
