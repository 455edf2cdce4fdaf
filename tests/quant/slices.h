// Slices of matrices for tests, and memory for a slice that detects writes outside the slice.
#pragma once
#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/quant/matrices.h"

namespace tessera::quant {

// Memory for the items [begin, end) of an array of `bits`-bit items. All bytes are random initially. The memory begins
// with the byte that contains item `begin`, and has guard bytes on both sides.
class GuardedBits {
 public:
  GuardedBits(std::int64_t bits, Slice slice, std::mt19937& random) : bits_(bits), slice_(slice) {
    const std::int64_t bytes = (slice.end * bits_ + 7) / 8 - first_byte();
    for (std::int64_t i = 0; i < bytes + 2 * kGuard; ++i) before_.push_back(static_cast<std::uint8_t>(random()));
    bytes_ = before_;
  }
  GuardedBits(Element element, Slice slice, std::mt19937& random)
      : GuardedBits(element == Element::e2m1 ? 4 : 8, slice, random) {}
  std::uint8_t* data() { return bytes_.data() + kGuard; }

  // Returns item `index` of the array. Items must have at most 8 bits.
  int item(std::int64_t index) const {
    const std::int64_t bit = index * bits_ - (first_byte() - kGuard) * 8;
    return bytes_[static_cast<std::size_t>(bit / 8)] >> bit % 8 & ((1 << bits_) - 1);
  }
  // Returns true if all bits outside the slice are unchanged.
  bool is_kept() const {
    for (std::int64_t bit = 0; bit < static_cast<std::int64_t>(bytes_.size()) * 8; ++bit) {
      const std::int64_t in_array = bit + (first_byte() - kGuard) * 8;
      const bool is_inside = in_array >= slice_.begin * bits_ && in_array < slice_.end * bits_;
      if (!is_inside && bit_of(bytes_, bit) != bit_of(before_, bit)) return false;
    }
    return true;
  }
  // Copies the items of the slice to their positions in the whole array.
  void merge_into(std::vector<std::uint8_t>& whole) const {
    for (std::int64_t bit = slice_.begin * bits_; bit < slice_.end * bits_; ++bit) {
      std::uint8_t& byte = whole[static_cast<std::size_t>(bit / 8)];
      const int mask = 1 << bit % 8, value = bit_of(bytes_, bit - (first_byte() - kGuard) * 8) << bit % 8;
      byte = static_cast<std::uint8_t>((byte & ~mask) | value);
    }
  }

 private:
  static constexpr std::int64_t kGuard = 8;  // bytes on each side; a multiple of 4, which keeps the alignment of fp32
  std::int64_t first_byte() const { return slice_.begin * bits_ / 8; }
  static int bit_of(const std::vector<std::uint8_t>& bytes, std::int64_t bit) {
    return bytes[static_cast<std::size_t>(bit / 8)] >> bit % 8 & 1;
  }

  std::int64_t bits_;
  Slice slice_;
  std::vector<std::uint8_t> before_, bytes_;
};

// Copies the items of a slice from one array to another. Items have `bits` bits.
inline void copy_items(const std::vector<std::uint8_t>& from, Slice slice, std::int64_t bits,
                       std::vector<std::uint8_t>& to) {
  for (std::int64_t bit = slice.begin * bits; bit < slice.end * bits; bit += 4) {
    const auto byte = static_cast<std::size_t>(bit / 8);
    const int mask = bit % 8 == 0 ? 0x0F : 0xF0;
    to[byte] = static_cast<std::uint8_t>((to[byte] & ~mask) | (from[byte] & mask));
  }
}

// Divides [0, size) at random into `count` slices, some of them empty.
inline std::vector<Slice> random_slices(std::int64_t size, int count, std::mt19937& random) {
  std::vector<std::int64_t> cuts{0, size};
  for (int i = 1; i < count; ++i)
    cuts.push_back(i % 5 == 4 ? cuts.back() : std::uniform_int_distribution<std::int64_t>(0, size)(random));
  std::sort(cuts.begin(), cuts.end());
  std::vector<Slice> slices;
  for (std::size_t i = 0; i + 1 < cuts.size(); ++i) slices.push_back({cuts[i], cuts[i + 1]});
  return slices;
}

template <typename T>
Source source_from(const std::vector<T>& values, Slice slice) {
  Source source = source_of(values);
  source.data = values.data() + slice.begin;
  return source;
}

}  // namespace tessera::quant
