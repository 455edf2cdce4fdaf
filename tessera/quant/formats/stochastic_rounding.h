// Stochastic rounding of gradients to E2M1 (arXiv 2509.25149): a value between two adjacent numbers is rounded up with
// a probability that makes the expected result equal to the value.
//
// The random bits of an element are a function of its position in the model and in the step:
//   words = philox(counter {column / 8, token, step, side}, key)
//   key   = first two words of philox(counter {matrix, part, f, f / 2^32}, seed xor "nvfp4sr1"), f = parameter
// Element i of eight adjacent columns takes half i of the words; half 0 is the low half of the first word. Token and
// step are taken modulo 2^32. So the bits depend neither on the device nor on the division of tokens over calls and
// ranks.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>

#include "tessera/base/host_device.h"
#include "tessera/base/philox.h"
#include "tessera/base/text/name_hash.h"
#include "tessera/quant/formats/minifloat.h"

namespace tessera::quant {

// The products of one weight whose gradients are rounded.
struct RoundingSite {
  std::uint64_t seed = 0;
  std::uint64_t parameter = 0;         // name_hash of the weight's name (base/text/name_hash.h)
  std::uint32_t matrix = 0xFFFFFFFFU;  // number of the logical expert; 2^32 - 1 for a weight of one matrix
  // Rank in tp (etp for experts) if this rank holds some of the gradient's columns; 0 if it holds all columns.
  std::uint32_t part = 0;
};
TESSERA_HOST_DEVICE inline base::PhiloxKey rounding_key(const RoundingSite& site) {
  constexpr std::uint64_t kName = 0x6E76667034737231;  // "nvfp4sr1": other random numbers than those of other uses
  const std::uint64_t seed = site.seed ^ kName;
  const base::PhiloxCounter words =
      base::philox({site.matrix, site.part, static_cast<std::uint32_t>(site.parameter),
                    static_cast<std::uint32_t>(site.parameter >> 32)},
                   {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return {words[0], words[1]};
}

// The random bits of one gradient [tokens, columns]. Without `step`, values are rounded to nearest even.
struct StochasticRounding {
  base::PhiloxKey key{};
  // The number of the step, in memory of the gradient's device. The kernel reads the number.
  const std::int64_t* step = nullptr;
  std::int64_t first_token = 0;  // logical token of row 0; row i has the logical token first_token + i
};

// The random bits of the gradients of a stack of matrices. Without `step`, values are rounded to nearest even.
struct StackRounding {
  RoundingSite site;  // `matrix` is the number of the stack's first matrix
  const std::int64_t* step = nullptr;
  std::int64_t first_token = 0;  // logical token of the first token of all rows

  // Returns the random bits of matrix `i` of the stack.
  TESSERA_HOST_DEVICE StochasticRounding of(std::int64_t i) const {
    RoundingSite own = site;
    own.matrix += static_cast<std::uint32_t>(i);
    return {.key = rounding_key(own), .step = step, .first_token = first_token};
  }
};

// The two operands of a gradient have different bits.
enum class RoundingSide : std::uint8_t { rows = 0, columns = 1 };

inline constexpr int kRoundedColumns = 8;  // number of adjacent columns whose bits are computed together

// Returns the words of eight adjacent columns of a row. `step` is *rounding.step. The first column is 8 * `group`.
TESSERA_HOST_DEVICE inline base::PhiloxCounter rounding_words(const StochasticRounding& rounding, std::uint32_t step,
                                                              std::int64_t row, std::uint32_t group,
                                                              RoundingSide side) {
  return base::philox(
      {group, static_cast<std::uint32_t>(rounding.first_token + row), step, static_cast<std::uint32_t>(side)},
      rounding.key);
}
// Returns the 16 random bits of element `i` of eight columns.
TESSERA_HOST_DEVICE inline std::uint32_t rounding_bits(const base::PhiloxCounter& words, int i) {
  return words[static_cast<unsigned>(i) / 2] >> (16 * (i % 2)) & 0xFFFF;
}

// Returns the fp32 sum of a number from 0 to 1 and 1, or of any number and 0, rounded towards infinity.
TESSERA_HOST_DEVICE inline float sum_rounded_up(float value, float one_or_zero) {
#ifdef __CUDA_ARCH__
  return __fadd_ru(value, one_or_zero);
#else
  const float sum = value + one_or_zero;
  return sum - one_or_zero < value ? std::nextafter(sum, 3.0F) : sum;
#endif
}

// Rounds a number that is not negative to E2M1: it is limited to 6. Between the adjacent numbers lo and hi, it is
// rounded up if 2^16 (magnitude - lo) / (hi - lo) > bits, where `bits` is a number below 2^16. A NaN gives 6.
TESSERA_HOST_DEVICE inline float round_e2m1_randomly(float magnitude, std::uint32_t bits) {
  // From 1 on, adjacent numbers are 2^22 apart in the bits of fp32, and the last 22 bits are a fraction of this
  // distance. Below 1 the numbers are 0.5 apart, as they are between 1 and 2, so 1 is added. The sum is rounded up,
  // because every value above lo exceeds the threshold 0.
  const float limited = fminf(magnitude, 6.0F), shift = limited < 1 ? 1.0F : 0.0F;
  const auto word = std::bit_cast<std::uint32_t>(sum_rounded_up(limited, shift));
  return std::bit_cast<float>((word + 0x3FFFFF - (bits << 6)) & 0xFFC00000) - shift;
}
// Returns the code of a value whose magnitude is rounded by round_e2m1_randomly. A NaN gives the code of 6.
TESSERA_HOST_DEVICE inline std::uint8_t encode_e2m1_randomly(float value, std::uint32_t bits) {
  const float rounded = round_e2m1_randomly(fabsf(value), bits);
  return E2M1::encode(value != value ? rounded : copysignf(rounded, value));
}

}  // namespace tessera::quant
