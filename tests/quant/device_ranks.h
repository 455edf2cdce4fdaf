// Simulated ranks that cast slices of weights on a GPU, and the expected results.
#pragma once
#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tessera/quant/masters/master_cast.h"
#include "tests/quant/on_device.h"
#include "tests/quant/slices.h"

namespace tessera::quant {

template <typename T>
struct DeviceWeight {
  Encoding encoding;
  Extent matrix;
  std::vector<T> master;
};

inline std::vector<float> master_of(float /*type*/, std::int64_t count, unsigned seed) {
  return all_kinds_of_values(count, seed);
}
inline std::vector<bfloat16> master_of(bfloat16 /*type*/, std::int64_t count, unsigned seed) {
  return rounded_values(all_kinds_of_values(count, seed));
}

// The arrays of one weight on a rank that casts some slices of the weight. The arrays have the size of the whole
// weight, so that tests detect writes outside the slices.
template <typename T>
struct DeviceParts {
  DeviceParts(const DeviceWeight<T>& weight, std::size_t slices, std::size_t shift)
      : master(weight.master, shift * sizeof(T)),
        room(room_for(weight.encoding, weight.matrix)),
        codes(room.data, shift),
        scales(room.scales),
        tensor_amax(std::vector<float>{-1}),
        not_finite(std::vector<float>(slices, -1.0F)) {}

  DeviceArray<T> master;
  Stored room;
  DeviceArray<std::uint8_t> codes, scales;
  DeviceArray<float> tensor_amax, not_finite;  // not_finite has one element for each slice
};

// A simulated rank that casts slices of all weights. slices[w] are its slices of weight w.
template <typename T>
class DeviceRank {
 public:
  DeviceRank(const std::vector<DeviceWeight<T>>& weights, std::vector<std::vector<Slice>> slices, std::size_t shift,
             base::CudaStream stream = nullptr)
      : weights_(weights), slices_(std::move(slices)) {
    std::vector<MasterSlice> list;
    for (std::size_t w = 0; w < weights.size(); ++w) {
      parts_.push_back(std::make_unique<DeviceParts<T>>(weights[w], slices_[w].size(), shift));
      for (std::size_t number = 0; number < slices_[w].size(); ++number) list.push_back(master_slice(w, number));
    }
    cast_ = make_master_cast(list, kTestDevice, stream);
  }

  MasterCast& cast() { return *cast_; }
  const std::vector<std::vector<Slice>>& slices() const { return slices_; }
  DeviceParts<T>& parts(std::size_t w) { return *parts_[w]; }

  // Returns the tiles of weight w whose scales are stored with `slice`. The tiles are divided over the slices in
  // proportion to their elements.
  Slice tiles_of(std::size_t w, const Slice& slice) const {
    const std::int64_t tiles = scale_extent(weights_[w].encoding, weights_[w].matrix).elements();
    const std::int64_t elements = std::max<std::int64_t>(weights_[w].matrix.elements(), 1);
    return {.begin = tiles * slice.begin / elements, .end = tiles * slice.end / elements};
  }

 private:
  MasterSlice master_slice(std::size_t w, std::size_t number) {
    const DeviceWeight<T>& weight = weights_[w];
    const Slice& slice = slices_[w][number];
    DeviceParts<T>& parts = *parts_[w];
    const std::int64_t in_byte = elements_in_byte(weight.encoding.element);
    const std::size_t scale_bytes = size_of(scale_type(weight.encoding.scale));
    const Slice tiles = tiles_of(w, slice);
    return {.source = {.data = parts.master.data() + slice.begin,
                       .type = sizeof(T) == sizeof(float) ? DType::fp32 : DType::bf16},
            .matrix = weight.matrix,
            .encoding = weight.encoding,
            .slice = slice,
            .data = parts.codes.data() + slice.begin / in_byte,
            .tiles = tiles,
            .scales = parts.scales.data() + static_cast<std::size_t>(tiles.begin) * scale_bytes,
            .tensor_amax = parts.tensor_amax.data(),
            .not_finite = parts.not_finite.data() + number};
  }

  const std::vector<DeviceWeight<T>>& weights_;
  std::vector<std::vector<Slice>> slices_;
  std::vector<std::unique_ptr<DeviceParts<T>>> parts_;
  std::unique_ptr<MasterCast> cast_;
};

template <typename T>
void expect_slices_of_whole(DeviceRank<T>& rank, const std::vector<DeviceWeight<T>>& weights) {
  for (std::size_t w = 0; w < weights.size(); ++w) {
    const Encoding& encoding = weights[w].encoding;
    const Stored whole = quantized(weights[w].master, weights[w].matrix, encoding);
    Stored expected = room_for(encoding, weights[w].matrix);
    for (const Slice& slice : rank.slices()[w]) {
      copy_items(whole.data, slice, encoding.element == Element::e2m1 ? 4 : 8, expected.data);
      copy_items(whole.scales, rank.tiles_of(w, slice), encoding.scale == Scale::fp32 ? 32 : 8, expected.scales);
    }
    EXPECT_TRUE(same_bytes(rank.parts(w).codes.values(), expected.data)) << "codes of weight " << w;
    EXPECT_TRUE(same_bytes(rank.parts(w).scales.values(), expected.scales)) << "scales of weight " << w;
    const std::vector<float> marks = rank.parts(w).not_finite.values();
    for (std::size_t number = 0; number < marks.size(); ++number)
      EXPECT_TRUE(is_mark_of(marks[number], weights[w].master, rank.slices()[w][number])) << "mark of weight " << w;
    EXPECT_EQ(rank.parts(w).tensor_amax.values()[0], rank.slices()[w].empty() ? -1 : whole.tensor_amax);
  }
}

// Returns weights of all encodings in matrices of several sizes, and two weights without elements.
template <typename T>
std::vector<DeviceWeight<T>> device_weights(unsigned seed) {
  std::vector<DeviceWeight<T>> weights;
  for (const Extent& matrix : device_matrices())
    for (const NamedEncoding& named : all_encodings()) {
      ++seed;
      if (matrix.elements() > 100000 && seed % 2 == 0) continue;
      weights.push_back({named.encoding, matrix, master_of(T{}, matrix.elements(), seed)});
    }
  weights.insert(weights.begin() + 5, DeviceWeight<T>{all_encodings()[7].encoding, {0, 32}, {}});
  weights.push_back({all_encodings()[0].encoding, {0, 0}, {}});
  return weights;
}

}  // namespace tessera::quant
