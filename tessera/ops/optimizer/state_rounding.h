// Stochastic rounding of the state of an update to bf16: a number between two adjacent bf16 numbers is rounded up with
// a probability that makes the expected result equal to the number.
//
// The random bits of an element are a function of its position in the logical tensor and of the number of the update:
//   words = philox(counter {q, q / 2^32, u, u / 2^32}, key),   q = index / 4,   u = number of the update
//   key   = seed xor "moments1" xor name_hash(parameter)
// Word (index mod 4) belongs to the element: its low half rounds the first plane, its high half the second plane. So
// the bits depend neither on the device nor on the division of the tensor over ranks and calls.
#pragma once
#include <bit>
#include <cstdint>
#include <string_view>

#include "tessera/base/host_device.h"
#include "tessera/base/philox.h"
#include "tessera/quant/bfloat16.h"

namespace tessera::ops {

base::PhiloxKey state_rounding_key(std::uint64_t seed, std::string_view parameter);

// The logical positions of the elements of a shard. Element i has the index
//   first + i / row * stride + i % row
// in the flattened logical tensor; first + i if `row` is 0.
struct LogicalIndices {
  std::int64_t first = 0, row = 0, stride = 0;

  TESSERA_HOST_DEVICE std::int64_t operator[](std::int64_t i) const {
    return row == 0 ? first + i : first + i / row * stride + i % row;
  }
};

// The bits of adjacent elements of one update. Not thread-safe.
class StateBits {
 public:
  TESSERA_HOST_DEVICE StateBits(base::PhiloxKey key, std::int64_t update)
      : key_(key), update_(static_cast<std::uint64_t>(update)) {}

  // Returns the word of the element with this index.
  TESSERA_HOST_DEVICE std::uint32_t word(std::int64_t index) {
    const std::int64_t group = index / 4;
    if (group != group_) {
      const auto q = static_cast<std::uint64_t>(group);
      words_ = base::philox({static_cast<std::uint32_t>(q), static_cast<std::uint32_t>(q >> 32),
                             static_cast<std::uint32_t>(update_), static_cast<std::uint32_t>(update_ >> 32)},
                            key_);
      group_ = group;
    }
    const auto i = static_cast<unsigned>(index % 4);
    return i == 0 ? words_[0] : i == 1 ? words_[1] : i == 2 ? words_[2] : words_[3];
  }

 private:
  base::PhiloxKey key_;
  std::uint64_t update_;
  std::int64_t group_ = -1;
  base::PhiloxCounter words_{};
};

// Rounds a number to bf16 with 16 random bits. Zeros, infinities and NaNs do not change. The magnitude of the result of
// a finite number is at most that of the greatest finite bf16 number.
TESSERA_HOST_DEVICE inline quant::bfloat16 round_stochastically(float value, std::uint32_t random) {
  constexpr std::uint32_t kExponent = 0x7F800000;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sum = bits + (random & 0xFFFF), quiet = (bits & 0x7FFFFF) != 0 ? 0x40 : 0;
  // Selections instead of branches, because the threads of a warp would take different ones.
  const std::uint32_t finite = (sum & kExponent) == kExponent ? (sum >> 16 & 0x8000) | 0x7F7F : sum >> 16;
  quant::bfloat16 result;
  result.bits = static_cast<std::uint16_t>((bits & kExponent) == kExponent ? bits >> 16 | quiet : finite);
  return result;
}

}  // namespace tessera::ops
