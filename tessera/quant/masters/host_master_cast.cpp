#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "tessera/quant/masters/master_cast_plan.h"

namespace tessera::quant {
namespace {

// Returns the largest magnitude of a slice's elements; a NaN counts as larger than infinity. The bits of magnitudes
// have the same order as their values, so the compiler can vectorise the maximum.
template <typename Bits, typename T>
T largest_magnitude(const void* data, std::int64_t count) {
  static_assert(sizeof(Bits) == sizeof(T));
  const T* elements = static_cast<const T*>(data);
  Bits largest = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const int magnitude = std::bit_cast<Bits>(elements[i]) & std::numeric_limits<Bits>::max();
    largest = std::max(largest, static_cast<Bits>(magnitude));
  }
  return std::bit_cast<T>(largest);
}

// Returns true if all elements of a slice are finite after rounding to bf16. Rounding keeps the order of magnitudes, so
// only the largest magnitude is rounded.
bool is_finite(const Source& source, std::int64_t count) {
  const bfloat16 largest = source.type == DType::bf16
                               ? largest_magnitude<std::int16_t, bfloat16>(source.data, count)
                               : bfloat16(largest_magnitude<std::int32_t, float>(source.data, count));
  return std::isfinite(static_cast<float>(largest));
}

class HostMasterCast final : public MasterCast {
 public:
  explicit HostMasterCast(NumberedSlices numbered) : slices_(std::move(numbered.slices)), numbers_(numbered.numbers) {
    std::size_t tiles = 0;
    for (const MasterSlice& slice : slices_) {
      first_tiles_.push_back(tiles);
      tiles += static_cast<std::size_t>(scale_extent(slice.encoding, slice.matrix).elements());
    }
    first_tiles_.push_back(tiles);
    amaxes_.resize(tiles + static_cast<std::size_t>(numbers_));
    multipliers_.resize(tiles);
  }

  float* amaxes() override { return amaxes_.data(); }
  std::int64_t amax_count() const override { return static_cast<std::int64_t>(amaxes_.size()); }
  std::int64_t numbers() const override { return numbers_; }

  void clear_amaxes() override { std::fill(amaxes_.begin(), amaxes_.end(), 0.0F); }

  void compute_amaxes() override {
    clear_amaxes();
    for (std::size_t s = 0; s < slices_.size(); ++s) {
      const MasterSlice& slice = slices_[s];
      const std::span<float> tiles = tiles_of(s, amaxes_);
      take_amaxes(slice.source, slice.matrix, slice.encoding.tile, slice.slice, tiles);
      if (!tiles.empty()) tensor_amaxes()[slice.number] = *std::max_element(tiles.begin(), tiles.end());
    }
  }

  void cast() override {
    // Several slices may share a mark, so all marks are cleared first.
    for (const MasterSlice& slice : slices_)
      if (slice.not_finite != nullptr) *slice.not_finite = 0;
    for (std::size_t s = 0; s < slices_.size(); ++s) {
      const MasterSlice& slice = slices_[s];
      const float tensor_amax = tensor_amaxes()[slice.number];
      if (slice.tensor_amax != nullptr) *slice.tensor_amax = tensor_amax;
      if (slice.encoding.tile == ScaleTile{}) tiles_of(s, amaxes_).front() = tensor_amax;
      make_scales_of(s, slice.tiles, slice.scales);
      make_scales_of(s, touched_tiles(slice.encoding.tile, slice.matrix, slice.slice), nullptr);
      if (slice.not_finite != nullptr && !is_finite(slice.source, slice.slice.size()))
        *slice.not_finite = std::numeric_limits<float>::quiet_NaN();
      quant::cast(slice.source, slice.matrix, slice.encoding, slice.slice, tiles_of(s, multipliers_), slice.data);
    }
  }

 private:
  // Returns the part of `values` for weight s. `values` holds one number for each tile of all weights.
  std::span<float> tiles_of(std::size_t s, std::span<float> values) const {
    return values.subspan(first_tiles_[s], first_tiles_[s + 1] - first_tiles_[s]);
  }

  // Computes the multipliers and the scales of a range of tiles of one weight.
  void make_scales_of(std::size_t s, Slice tiles, void* scales) {
    const auto first = static_cast<std::size_t>(tiles.begin), count = static_cast<std::size_t>(tiles.size());
    make_scales(slices_[s].encoding, tiles_of(s, amaxes_).subspan(first, count), tensor_amaxes()[slices_[s].number],
                tiles_of(s, multipliers_).subspan(first, count), scales);
  }

  const std::vector<MasterSlice> slices_;
  const std::int64_t numbers_;
  // Number of the first tile of each weight; the last entry is the number of all tiles.
  std::vector<std::size_t> first_tiles_;
  std::vector<float> amaxes_;
  std::vector<float> multipliers_;
};

}  // namespace

std::unique_ptr<MasterCast> make_host_master_cast(std::span<const MasterSlice> slices, std::int64_t numbers) {
  return std::make_unique<HostMasterCast>(numbered_slices(slices, numbers));
}

}  // namespace tessera::quant
