// Counts the values of a conversion that are NaN or infinite. Such values are converted unchanged and reported.
#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/quant/dtype.h"

namespace tessera::hub {

// Counts by tensor. Tensors are in the order in which they are first added.
class NonFiniteCounts {
 public:
  // Adds to the counts of a tensor.
  void add(const std::string& tensor, std::int64_t nan, std::int64_t infinite);
  // Counts the NaN and infinite values among `elements` elements of a tensor. `dtype` is a floating type.
  void count(const std::string& tensor, const std::byte* data, quant::DType dtype, std::int64_t elements);
  // Returns [{"tensor": NAME, "nan": COUNT, "infinite": COUNT}, ...]; empty if all values are finite.
  nlohmann::json to_json() const;
  // numbers() returns two counts for each tensor: of NaN and of infinite values. set_numbers() sets these counts. Ranks
  // that have added the same tensors may sum their numbers.
  std::vector<std::int64_t> numbers() const;
  void set_numbers(const std::vector<std::int64_t>& numbers);

 private:
  struct Counts {
    std::string tensor;
    std::int64_t nan = 0, infinite = 0;
  };
  std::vector<Counts> counts_;
  std::unordered_map<std::string, std::size_t> where_;  // index in counts_
};

// Returns one line for each tensor of NonFiniteCounts::to_json.
std::vector<std::string> non_finite_lines(const nlohmann::json& counts);

}  // namespace tessera::hub
