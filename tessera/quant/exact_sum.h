// Sums of fp64 numbers without any rounding, so that neither the order of the terms nor their division among ranks
// matters. The accumulator is one wide fixed-point number, made of integers that are added independently of each other
// (Kulisch's accumulator). The total is rounded once.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "tessera/base/host_device.h"

namespace tessera::quant {

// The bits of the accumulator count units of 2^-1074, the smallest subnormal number. The largest number is just below
// 2^1024, so fp64 needs 1074 + 1024 bits, of which a limb has 32. The last limb holds the 18 that remain, and keeps 45
// more for the carries of 2^45 numbers of any size.
inline constexpr int kExactBits = 1074 + 1024;
inline constexpr int kLimbBits = 32;
inline constexpr int kExactLimbs = (kExactBits + kLimbBits - 1) / kLimbBits;

// The sum is that of limbs[i] * 2^(32 i - 1074), of terms of either sign. A normalised sum has limbs of 0 to 2^32 - 1,
// but for the last, which has the sign of the sum. NaNs and infinities are counted, and are in no limb.
// A message: all words of several normalised sums, added one by one, are the words of the sum of all.
struct ExactSum {
  std::int64_t limbs[kExactLimbs] = {};
  std::int64_t nans = 0, positive_infinities = 0, negative_infinities = 0;

  bool operator==(const ExactSum&) const = default;
};
inline constexpr std::int64_t kExactSumWords = sizeof(ExactSum) / sizeof(std::int64_t);
static_assert(kExactSumWords == kExactLimbs + 3);

// So many additions to a normalised sum, of numbers or of normalised sums, leave room in every limb, since each adds
// less than 2^32 to it. Then the sum must be normalised.
inline constexpr std::int64_t kMostExactAdditions = std::int64_t{1} << 30;
static_assert(kMostExactAdditions + 1 < (std::int64_t{1} << (63 - kLimbBits)));

// What a finite number adds to limbs `first`, `first` + 1 and `first` + 2.
struct ExactTerm {
  int first = 0;
  std::int64_t parts[3] = {};
};

TESSERA_HOST_DEVICE inline ExactTerm exact_term(double value) {
  constexpr std::uint64_t mask = (std::uint64_t{1} << kLimbBits) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7FF);
  std::uint64_t mantissa = bits & ((std::uint64_t{1} << 52) - 1);
  if (exponent > 0) mantissa |= std::uint64_t{1} << 52;  // else it is subnormal, in the same units as exponent 1
  const int lowest = exponent > 0 ? exponent - 1 : 0;    // bit of the accumulator
  const int shift = lowest % kLimbBits;
  const std::int64_t sign = bits >> 63 == 0 ? 1 : -1;
  return {.first = lowest / kLimbBits,
          .parts = {sign * static_cast<std::int64_t>(mantissa << shift & mask),
                    sign * static_cast<std::int64_t>(mantissa >> (kLimbBits - shift) & mask),
                    sign * static_cast<std::int64_t>(mantissa >> kLimbBits >> (kLimbBits - shift))}};
}

// The count that a NaN or an infinity belongs to.
TESSERA_HOST_DEVICE inline std::int64_t& count_of(ExactSum& sum, double value) {
  if (std::isnan(value)) return sum.nans;
  return value > 0 ? sum.positive_infinities : sum.negative_infinities;
}

TESSERA_HOST_DEVICE inline void add(ExactSum& sum, double value) {
  if (!std::isfinite(value)) {
    ++count_of(sum, value);
    return;
  }
  const ExactTerm term = exact_term(value);
  for (int i = 0; i < 3; ++i) sum.limbs[term.first + i] += term.parts[i];
}

// Carries what a limb has beyond its 32 bits to the next. The sum stays what it is.
TESSERA_HOST_DEVICE inline void normalise(ExactSum& sum) {
  std::int64_t carry = 0;
  for (int i = 0; i + 1 < kExactLimbs; ++i) {
    const std::int64_t limb = sum.limbs[i] + carry;
    carry = limb >> kLimbBits;  // rounds down, so that the rest is not negative
    sum.limbs[i] = limb - carry * (std::int64_t{1} << kLimbBits);
  }
  sum.limbs[kExactLimbs - 1] += carry;
}

// Any number of values. The sum is normalised before and after.
void add(ExactSum& sum, std::span<const double> values);

// Rounds the magnitude of a finite sum, which is normalised and not negative, to the nearest fp64 number. When
// two are equally near, it takes the one whose last bit is 0. A sum beyond the largest fp64 number becomes infinity.
TESSERA_HOST_DEVICE inline double rounded_magnitude(const ExactSum& sum) {
  int top = kExactLimbs - 1;
  while (top > 0 && sum.limbs[top] == 0) --top;
  int bits = 0;  // of limb `top`
  while (sum.limbs[top] >> bits != 0) ++bits;
  const int highest = top * kLimbBits + bits;  // behind the highest bit that is set
  if (highest > kExactBits) return std::numeric_limits<double>::infinity();
  // A number of up to 53 bits is its own encoding: with 52 it is subnormal, and the 53rd is the exponent's first bit.
  // Each bit more moves the encoding's 53 bits up by one, and adds one to the exponent.
  const int dropped = highest > 53 ? highest - 53 : 0;
  const int first = dropped / kLimbBits, shift = dropped % kLimbBits;
  std::uint64_t kept = static_cast<std::uint64_t>(sum.limbs[first]) >> shift;
  if (first + 1 < kExactLimbs) kept |= static_cast<std::uint64_t>(sum.limbs[first + 1]) << (kLimbBits - shift);
  if (first + 2 < kExactLimbs && shift > 0)
    kept |= static_cast<std::uint64_t>(sum.limbs[first + 2]) << (2 * kLimbBits - shift);
  std::uint64_t encoding = (static_cast<std::uint64_t>(dropped) << 52) + kept;
  if (dropped > 0) {
    const int half = dropped - 1;  // the bit that is worth half of the last one kept
    const std::int64_t half_limb = sum.limbs[half / kLimbBits];
    const int half_bit = half % kLimbBits;
    bool rest = (half_limb & ((std::int64_t{1} << half_bit) - 1)) != 0;
    for (int i = 0; i < half / kLimbBits; ++i) rest = rest || sum.limbs[i] != 0;
    const bool is_half = (half_limb >> half_bit & 1) != 0;
    if (is_half && (rest || (kept & 1) != 0)) ++encoding;  // a carry into the exponent is what it should be
  }
  return std::bit_cast<double>(encoding);
}

// What the sum is, rounded once to nearest even. NaN where a term is NaN or where infinities have both signs, else the
// infinity that is among the terms. A sum of 0 is +0. At most kMostExactAdditions since the sum was normalised.
TESSERA_HOST_DEVICE inline double rounded(ExactSum sum) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (sum.nans > 0 || (sum.positive_infinities > 0 && sum.negative_infinities > 0))
    return std::numeric_limits<double>::quiet_NaN();
  if (sum.positive_infinities > 0) return infinity;
  if (sum.negative_infinities > 0) return -infinity;
  normalise(sum);
  if (sum.limbs[kExactLimbs - 1] >= 0) return rounded_magnitude(sum);
  for (std::int64_t& limb : sum.limbs) limb = -limb;
  normalise(sum);
  return -rounded_magnitude(sum);
}

}  // namespace tessera::quant
