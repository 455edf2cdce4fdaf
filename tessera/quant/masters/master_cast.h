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
  // cast() writes 0 if all elements of the slice are finite after rounding to bf16, otherwise NaN. If several slices
  // have the same address, cast() writes 0 only if all of them are finite. Data and scales may hide values that are not
  // finite, because codes saturate and amaxes ignore NaNs. Null: not written.
  float* not_finite = nullptr;
  std::int64_t number = -1;  // index of the weight among the amaxes of whole weights; -1: the index of the slice
};

// Owns the amaxes. All memory belongs to one device. The addresses in the slices do not change after construction. Each
// call reads the current contents of the slices. On a GPU a call enqueues a fixed number of launches on the stream, for
// any number of slices. On the host a call returns when the work is done.
class MasterCast {
 public:
  virtual ~MasterCast() = default;

  // Returns the amaxes in fp32. First come the amaxes of all tiles of all weights, in the order of the slices. Then
  // come numbers() amaxes of whole weights; tensor_amaxes() points to these, and MasterSlice::number is an index of
  // them. For a weight that is one tile, the amax of the whole weight is also the amax of the tile.
  virtual float* amaxes() = 0;
  virtual std::int64_t amax_count() const = 0;
  float* tensor_amaxes() { return amaxes() + amax_count() - numbers(); }
  virtual std::int64_t numbers() const = 0;

  // First phase: computes all amaxes from this rank's slices. A tile without elements on this rank gets 0, and so does
  // the amax of a whole weight without a slice.
  virtual void compute_amaxes() = 0;
  // Replaces compute_amaxes() if another pass computes the amaxes, for example the optimizer. Sets all amaxes to 0. For
  // weights that are one tile each, the other pass only has to write tensor_amaxes().
  virtual void clear_amaxes() = 0;
  // Second phase: writes the scales, the elements, tensor_amax and not_finite of each slice from the current amaxes. An
  // empty slice gets its scales, tensor_amax and not_finite too.
  virtual void cast() = 0;
};

// `numbers` is the number of amaxes of whole weights; -1: the number of slices. It may be greater, so that all ranks
// have the same amaxes of whole weights although some ranks have no slice of some weights. Throws Error if:
//   - check_extent fails;
//   - a slice or its tiles are outside the matrix;
//   - a slice's number is outside [0, numbers);
//   - two slices have the same number.
std::unique_ptr<MasterCast> make_host_master_cast(std::span<const MasterSlice> slices, std::int64_t numbers = -1);
// Allocates the amaxes on `device`. Enqueues on `stream` if the device is a GPU.
std::unique_ptr<MasterCast> make_master_cast(std::span<const MasterSlice> slices, base::Device device,
                                             base::CudaStream stream, std::int64_t numbers = -1);

}  // namespace tessera::quant
