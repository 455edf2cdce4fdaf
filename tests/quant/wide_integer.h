// Integers of 2304 bits, and their rounding to fp64: a slow reference for exact sums.
#pragma once
#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <limits>

namespace tessera::quant {

// An integer that counts units of 2^-1074. Stored in two's complement, least significant word first.
class WideInteger {
 public:
  WideInteger() = default;
  // `value` must be finite.
  explicit WideInteger(double value) {
    const auto bits = std::bit_cast<std::uint64_t>(value);
    const int exponent = static_cast<int>(bits >> 52 & 0x7FF);
    const std::uint64_t fraction = bits & 0xFFFFFFFFFFFFFu;
    add_bits(exponent == 0 ? fraction : fraction | 0x10000000000000u, exponent == 0 ? 0 : exponent - 1);
    if (bits >> 63 != 0) negate();
  }

  // Adds bits * 2^shift.
  void add_bits(std::uint64_t bits, int shift) {
    for (int bit = 0; bit < 64; ++bit)
      if ((bits >> bit & 1) != 0) add_word(std::uint32_t{1} << (shift + bit) % 32, (shift + bit) / 32);
  }
  WideInteger& operator+=(const WideInteger& other) {
    std::uint64_t carry = 0;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      carry += std::uint64_t{words_[i]} + other.words_[i];
      words_[i] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
    return *this;
  }
  void negate() {
    for (std::uint32_t& word : words_) word = ~word;
    add_word(1, 0);
  }
  bool is_negative() const { return words_.back() >> 31 != 0; }
  // Both numbers must be 0 or positive.
  std::strong_ordering operator<=>(const WideInteger& other) const {
    for (std::size_t i = words_.size(); i-- > 0;)
      if (words_[i] != other.words_[i]) return words_[i] <=> other.words_[i];
    return std::strong_ordering::equal;
  }
  bool operator==(const WideInteger&) const = default;

 private:
  void add_word(std::uint32_t word, int index) {
    std::uint64_t carry = word;
    for (auto i = static_cast<std::size_t>(index); carry != 0 && i < words_.size(); ++i) {
      carry += words_[i];
      words_[i] = static_cast<std::uint32_t>(carry);
      carry >>= 32;
    }
  }

  std::array<std::uint32_t, 72> words_{};
};

// Returns the nearest fp64 number; a tie is rounded to the even encoding. The search uses that encodings of positive
// numbers have the order of the numbers. The encoding of infinity represents 2^1024 here.
inline double nearest(WideInteger integer) {
  if (integer.is_negative()) {
    integer.negate();
    return -nearest(integer);
  }
  const std::uint64_t infinity = std::bit_cast<std::uint64_t>(std::numeric_limits<double>::infinity());
  const auto value_of = [infinity](std::uint64_t encoding) {
    if (encoding < infinity) return WideInteger(std::bit_cast<double>(encoding));
    WideInteger beyond;
    beyond.add_bits(1, 1074 + 1024);
    return beyond;
  };
  if (integer >= value_of(infinity)) return std::numeric_limits<double>::infinity();
  std::uint64_t low = 0, high = infinity;  // the encoding of the integer is in [low, high)
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    (value_of(middle) <= integer ? low : high) = middle;
  }
  WideInteger twice = integer, both = value_of(low);
  twice += integer;
  both += value_of(high);
  const bool is_up = twice > both || (twice == both && low % 2 == 1);
  return std::bit_cast<double>(is_up ? high : low);
}

}  // namespace tessera::quant
