// Dropout of a matrix [tokens, columns] (Srivastava et al. 2014). An element is multiplied by 0 with probability p, and
// otherwise by 1 / (1 - p). p is the requested probability rounded down to a multiple of 2^-32. NaN and infinite
// elements are not hidden, because their product with 0 is NaN.
//
// The factor of an element is a function of seed, step, site, logical token and column:
//   words = philox(counter {column / 4, token, step, site}, key {seed mod 2^32, seed / 2^32} xor "dropout1")
//   factor = 0 if words[column mod 4] < 2^32 p
// The factors therefore depend neither on the device nor on the division of tokens over calls and ranks. Backward
// computes the same factors again. Token and step are taken modulo 2^32.
#pragma once
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/base/philox.h"

namespace tessera::ops {

// The dropout of one matrix.
struct Dropout {
  double probability = 0;  // requested probability in [0, 1); 0: no dropout
  std::uint64_t seed = 0;
  std::uint32_t site = 0;  // number of the matrix in the model (nn::input_dropout)
  // The number of the step, in memory of the matrix's device. The kernel reads the number.
  const std::int64_t* step = nullptr;
  std::int64_t first_token = 0;  // logical token of row 0; row i has the logical token first_token + i

  bool drops() const { return probability > 0; }
};

// Computes the factors of a Dropout. Used by kernels on every device.
class DropoutMask {
 public:
  DropoutMask() = default;  // for kernels without dropout
  // The operators must have checked `dropout`.
  explicit DropoutMask(const Dropout& dropout)
      : step_(dropout.step),
        first_token_(static_cast<std::uint32_t>(dropout.first_token)),
        site_(dropout.site),
        threshold_(static_cast<std::uint32_t>(dropout.probability * 0x1p32)),
        scale_(0x1p32 / (0x1p32 - static_cast<double>(threshold_))) {
    // The key of dropout. It makes these random numbers differ from those of initial values.
    constexpr std::uint64_t kName = 0x64726F706F757431;
    const std::uint64_t key = dropout.seed ^ kName;
    key_ = {static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)};
  }

  static constexpr int kColumns = 4;  // number of adjacent columns whose factors are computed together

  TESSERA_HOST_DEVICE std::uint32_t step() const { return static_cast<std::uint32_t>(*step_); }
  // Writes the factors of kColumns columns of one row, in the arithmetic type. The first column is group * kColumns.
  // `step` is the result of step().
  template <typename A>
  TESSERA_HOST_DEVICE void factors(std::uint32_t step, std::int64_t row, std::uint32_t group,
                                   A (&factors)[kColumns]) const {
    const base::PhiloxCounter words =
        base::philox({group, first_token_ + static_cast<std::uint32_t>(row), step, site_}, key_);
    for (int i = 0; i < kColumns; ++i) factors[i] = words[i] < threshold_ ? A{0} : static_cast<A>(scale_);
  }

 private:
  const std::int64_t* step_ = nullptr;
  base::PhiloxKey key_{};
  std::uint32_t first_token_ = 0, site_ = 0, threshold_ = 0;
  double scale_ = 1;
};

}  // namespace tessera::ops
