// Values of a conversion that are no finite numbers: they are converted, and named.
#pragma once
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/quant/dtype.h"

namespace tessera::run {

// Counts by tensor, in the order in which the tensors come.
class NonFiniteCounts {
 public:
  // Adds elements of a tensor. dtype: a floating type.
  void count(const std::string& tensor, const std::byte* data, quant::DType dtype, std::int64_t elements);
  // [{"tensor": NAME, "nan": COUNT, "infinite": COUNT}, ...]; empty: all values are finite.
  nlohmann::json to_json() const;

 private:
  struct Counts {
    std::string tensor;
    std::int64_t nan = 0, infinite = 0;
  };
  std::vector<Counts> counts_;
};

}  // namespace tessera::run
