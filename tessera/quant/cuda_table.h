// The CUDA kernels of this layer, as a table of pointers. A build without CUDA has no table.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"
#include "tessera/quant/cuda/device_quantize.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/formats/delayed_scaling.h"
#include "tessera/quant/masters/master_cast.h"

namespace tessera::quant {

// The most weights or matrices of one launch: what fits into 4 KiB of parameters.
inline constexpr int kWeightsOfLaunch = 24;

// The functions enqueue on a stream of the current device; the kernels of make_kernels enqueue on a stream of its
// `device`.
struct CudaTable {
  std::unique_ptr<Kernels> (*make_kernels)(base::Device device, base::CudaStream stream) = nullptr;
  // Casts as quant::cast (elementwise.h) does.
  void (*cast)(const void* source, DType from, void* target, DType to, std::int64_t count,
               base::CudaStream stream) = nullptr;
  // Adds term[i] to sum[i]. Both have `type`, an accumulator type.
  void (*add)(void* sum, DType type, const void* term, std::int64_t count, base::CudaStream stream) = nullptr;

  // Number formats (device_quantize.h). Lists of weights take a fixed number of launches for each kWeightsOfLaunch of
  // them.
  std::unique_ptr<MasterCast> (*make_master_cast)(std::span<const MasterSlice> slices, base::Device device,
                                                  base::CudaStream stream) = nullptr;
  void (*dequantize)(std::span<const Dequantization> weights, base::CudaStream stream) = nullptr;
  void (*take_amaxes)(std::span<const AmaxTask> matrices, base::CudaStream stream) = nullptr;
  void (*cast_fp8)(const Fp8Cast& cast, base::CudaStream stream) = nullptr;
  void (*cast_blocks)(const BlockCast& cast, base::CudaStream stream) = nullptr;
  // operand_scale of a matrix with one fp32 scale, from its amax: *multiplier, and *inverse, the stored scale.
  void (*scale_of_amax)(const Encoding& encoding, const float* amax, float* multiplier, float* inverse,
                        base::CudaStream stream) = nullptr;
  void (*update_multipliers)(const DelayedScaling& scaling, base::CudaStream stream) = nullptr;
  // Two launches: the codes of all weights, then their scales.
  void (*create_columnwise)(std::span<const Transposition> weights, base::CudaStream stream) = nullptr;
  // Those of swizzle.h.
  void (*pad_scales)(const std::uint8_t* scales, Extent matrix, const Encoding& encoding, std::uint8_t* padded,
                     base::CudaStream stream) = nullptr;
  void (*swizzle_scales)(const std::uint8_t* padded, Extent matrix, const Encoding& encoding, std::uint8_t* swizzled,
                         base::CudaStream stream) = nullptr;
};

// Returns null in a build without CUDA.
const CudaTable* cuda_table();
// Returns the table. Errors: a build without CUDA; the message begins with `what`.
const CudaTable& require_cuda(std::string_view what);

}  // namespace tessera::quant
