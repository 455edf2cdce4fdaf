// Casts the masters of several weights to the weights' encodings, in two phases. The first phase computes amaxes. The
// caller then reduces the amaxes over the ranks that hold other slices or copies of these weights. The second phase
// writes the codes. The bytes equal those that a single rank with the whole matrix would write.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// The slice of one weight that a rank casts. A slice may be empty.
struct MasterSlice {
  Source source;  // elements of the slice
  Extent matrix;
  Encoding encoding;
  Slice slice;
  std::uint8_t* data = nullptr;  // target: the byte with the first element of the slice
  // The tiles whose scales this rank stores, and the address for the scale of the first of these tiles. Other ranks may
  // hold the elements of these tiles.
  Slice tiles;
  void* scales = nullptr;
  float* tensor_amax = nullptr;  // receives the amax of the whole weight; null: not written
  // cast() writes 0 if all elements of the slice are finite after rounding to bf16, otherwise NaN. Data and scales may
  // hide values that are not finite, because codes saturate and amaxes ignore NaNs. Null: not written.
  float* not_finite = nullptr;
};

// Owns the amaxes. All memory belongs to one device. The addresses in the slices do not change after construction. Each
// call reads the current contents of the slices. On a GPU a call enqueues a fixed number of launches on the stream, for
// any number of slices. On the host a call returns when the work is done.
class MasterCast {
 public:
  virtual ~MasterCast() = default;

  // Returns the amaxes in fp32. First come the amaxes of all tiles of all weights, in the order of the slices. Then
  // comes one amax for each whole weight; tensor_amaxes() points to these. For a weight that is one tile, the amax of
  // the whole weight is also the amax of the tile.
  virtual float* amaxes() = 0;
  virtual std::int64_t amax_count() const = 0;
  float* tensor_amaxes() { return amaxes() + amax_count() - slices(); }
  virtual std::int64_t slices() const = 0;

  // First phase: computes all amaxes from this rank's slices. A tile without elements on this rank gets 0.
  virtual void compute_amaxes() = 0;
  // Replaces compute_amaxes() if another pass computes the amaxes, for example the optimizer. Sets all amaxes to 0. For
  // weights that are one tile each, the other pass only has to write tensor_amaxes().
  virtual void clear_amaxes() = 0;
  // Second phase: writes the scales, the elements and not_finite of each slice from the current amaxes.
  virtual void cast() = 0;
};

// Throws Error if check_extent fails, or if a slice or its tiles are outside the matrix.
std::unique_ptr<MasterCast> make_host_master_cast(std::span<const MasterSlice> slices);
// Allocates the amaxes on `device`. Enqueues on `stream` if the device is a GPU.
std::unique_ptr<MasterCast> make_master_cast(std::span<const MasterSlice> slices, base::Device device,
                                             base::CudaStream stream);

}  // namespace tessera::quant
