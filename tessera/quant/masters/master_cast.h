// The cast of several weights' masters to an encoding, in two phases, between which the caller takes amaxes together
// over the ranks that hold other parts or duplicates of these weights. With all amaxes known, every rank writes the
// bytes that one rank would write that has the whole matrix.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/quant/formats/quantize.h"

namespace tessera::quant {

// The part of one weight that a rank casts, possibly nothing.
struct MasterSlice {
  Source source;  // of the slice
  Extent matrix;
  Encoding encoding;
  Slice slice;
  std::uint8_t* data = nullptr;  // the byte that holds the slice's first element
  // The tiles whose scales this rank stores, and where that of the first goes. Their elements may lie on other ranks.
  Slice tiles;
  void* scales = nullptr;
  float* tensor_amax = nullptr;  // where to leave it; null: nowhere
  // Where cast() leaves 0 if all elements of the slice are finite when rounded to bf16, and NaN otherwise. Codes
  // saturate and amaxes leave NaNs out, so data and scales may not show such elements. Null: nowhere.
  float* not_finite = nullptr;
};

// Owns the amaxes. All memory is of one device. The slices' addresses stay what they were when it was made; what they
// hold is read at each call. On a GPU calls are enqueued on the stream, a fixed number of launches each whatever the
// number of slices; on the host they return when the work is done.
class MasterCast {
 public:
  virtual ~MasterCast() = default;

  // Amaxes of all tiles of all weights, one weight behind the other in the order of the slices; behind them one amax of
  // each whole weight, which is also taken for the tile of a weight that is one tile. fp32. tensor_amaxes() are those
  // at the end.
  virtual float* amaxes() = 0;
  virtual std::int64_t amax_count() const = 0;
  float* tensor_amaxes() { return amaxes() + amax_count() - slices(); }
  virtual std::int64_t slices() const = 0;

  // First phase: writes all amaxes as this rank's slices give them, 0 for tiles of which it has nothing.
  virtual void compute_amaxes() = 0;
  // In its place, for who takes the amaxes in another pass: sets all of them to 0. Of weights that are one tile each
  // tensor_amaxes() are enough.
  virtual void clear_amaxes() = 0;
  // Second phase: from the amaxes as they are then, scales and elements; and the slices' not_finite.
  virtual void cast() = 0;
};

// Errors: as check_extent; a slice or tiles outside the matrix.
std::unique_ptr<MasterCast> make_host_master_cast(std::span<const MasterSlice> slices);
// Takes memory of `device` for the amaxes; enqueues on `stream` if the device is a GPU.
std::unique_ptr<MasterCast> make_master_cast(std::span<const MasterSlice> slices, base::Device device,
                                             base::CudaStream stream);

}  // namespace tessera::quant
