// Sums of fp64 numbers without rounding. The result depends neither on the order of the terms nor on their distribution
// over ranks. The accumulator is one wide fixed-point number (Kulisch's accumulator). It consists of integers (limbs)
// that are added independently of each other. The total is rounded once.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "tessera/base/host_device.h"

namespace tessera::quant {

// The accumulator counts units of 2^-1074, the smallest subnormal number. The largest number is just below 2^1024, so
// the accumulator needs 1074 + 1024 bits. A limb holds 32 of these bits. The last limb holds the remaining 18 bits. Its
// other 45 bits hold the carries of up to 2^45 numbers of any size.
inline constexpr int kExactBits = 1074 + 1024;
inline constexpr int kLimbBits = 32;
inline constexpr int kExactLimbs = (kExactBits + kLimbBits - 1) / kLimbBits;

// The value of the sum is the sum of limbs[i] * 2^(32 i - 1074); terms may have either sign. In a normalised sum every
// limb except the last is from 0 to 2^32 - 1, and the last limb has the sign of the sum. NaNs and infinities are
// counted separately and do not change the limbs. Several normalised sums can be added word by word. An integer
// all-reduce over the words therefore adds the sums of several ranks.
struct ExactSum {
  std::int64_t limbs[kExactLimbs] = {};
  std::int64_t nans = 0, positive_infinities = 0, negative_infinities = 0;

  bool operator==(const ExactSum&) const = default;
};
inline constexpr std::int64_t kExactSumWords = sizeof(ExactSum) / sizeof(std::int64_t);
static_assert(kExactSumWords == kExactLimbs + 3);

// A normalised sum must be normalised again after this number of additions. The addition of a number or of a normalised
// sum adds less than 2^32 to each limb, so this number of additions does not overflow a limb.
inline constexpr std::int64_t kMaxExactAdditions = std::int64_t{1} << 30;
static_assert(kMaxExactAdditions + 1 < (std::int64_t{1} << (63 - kLimbBits)));

// A finite number in the form of three additions: parts[i] is added to limb `first` + i.
struct ExactTerm {
  int first = 0;
  std::int64_t parts[3] = {};
};

TESSERA_HOST_DEVICE inline ExactTerm exact_term(double value) {
  constexpr std::uint64_t mask = (std::uint64_t{1} << kLimbBits) - 1;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto exponent = static_cast<int>(bits >> 52 & 0x7FF);
  std::uint64_t mantissa = bits & ((std::uint64_t{1} << 52) - 1);
  // Exponent 0 is a subnormal number, which has the unit of exponent 1.
  if (exponent > 0) mantissa |= std::uint64_t{1} << 52;
  const int lowest = exponent > 0 ? exponent - 1 : 0;  // accumulator bit of the mantissa's lowest bit
  const int shift = lowest % kLimbBits;
  const std::int64_t sign = bits >> 63 == 0 ? 1 : -1;
  return {.first = lowest / kLimbBits,
          .parts = {sign * static_cast<std::int64_t>(mantissa << shift & mask),
                    sign * static_cast<std::int64_t>(mantissa >> (kLimbBits - shift) & mask),
                    sign * static_cast<std::int64_t>(mantissa >> kLimbBits >> (kLimbBits - shift))}};
}

// Returns the counter for a NaN or an infinity.
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

// Carries the bits of each limb above bit 32 into the next limb. The value of the sum does not change.
TESSERA_HOST_DEVICE inline void normalise(ExactSum& sum) {
  std::int64_t carry = 0;
  for (int i = 0; i + 1 < kExactLimbs; ++i) {
    const std::int64_t limb = sum.limbs[i] + carry;
    carry = limb >> kLimbBits;  // rounds down, so the remainder is not negative
    sum.limbs[i] = limb - carry * (std::int64_t{1} << kLimbBits);
  }
  sum.limbs[kExactLimbs - 1] += carry;
}

// Adds any number of values. The sum is normalised before and after the call.
void add(ExactSum& sum, std::span<const double> values);

// Rounds a finite sum to the nearest fp64 number. The sum is normalised and not negative. A tie is rounded to the
// number whose last bit is 0. A sum beyond the largest fp64 number becomes infinity.
TESSERA_HOST_DEVICE inline double rounded_magnitude(const ExactSum& sum) {
  int top = kExactLimbs - 1;
  while (top > 0 && sum.limbs[top] == 0) --top;
  int bits = 0;  // number of bits of limb `top` up to its highest set bit
  while (sum.limbs[top] >> bits != 0) ++bits;
  const int highest = top * kLimbBits + bits;  // index of the highest set bit, plus 1
  if (highest > kExactBits) return std::numeric_limits<double>::infinity();
  // A sum of up to 53 bits equals the bit pattern of its fp64 number: 52 bits are a subnormal number, and bit 53 is the
  // first bit of the exponent. For each further bit, the lowest bit is dropped and the exponent grows by one.
  const int dropped = highest > 53 ? highest - 53 : 0;
  const int first = dropped / kLimbBits, shift = dropped % kLimbBits;
  std::uint64_t kept = static_cast<std::uint64_t>(sum.limbs[first]) >> shift;
  if (first + 1 < kExactLimbs) kept |= static_cast<std::uint64_t>(sum.limbs[first + 1]) << (kLimbBits - shift);
  if (first + 2 < kExactLimbs && shift > 0)
    kept |= static_cast<std::uint64_t>(sum.limbs[first + 2]) << (2 * kLimbBits - shift);
  std::uint64_t encoding = (static_cast<std::uint64_t>(dropped) << 52) + kept;
  if (dropped > 0) {
    const int half = dropped - 1;  // index of the highest dropped bit: half a unit in the last place
    const std::int64_t half_limb = sum.limbs[half / kLimbBits];
    const int half_bit = half % kLimbBits;
    bool rest = (half_limb & ((std::int64_t{1} << half_bit) - 1)) != 0;
    for (int i = 0; i < half / kLimbBits; ++i) rest = rest || sum.limbs[i] != 0;
    const bool is_half = (half_limb >> half_bit & 1) != 0;
    if (is_half && (rest || (kept & 1) != 0)) ++encoding;  // a carry into the exponent field gives the correct number
  }
  return std::bit_cast<double>(encoding);
}

// Returns the sum, rounded once to nearest even. Returns NaN if a term is NaN or if the terms include infinities of
// both signs. If the terms include infinities of one sign, returns that infinity. A sum of 0 gives +0. At most
// kMaxExactAdditions additions may have happened since `sum` was normalised.
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
