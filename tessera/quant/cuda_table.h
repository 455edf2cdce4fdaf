// The CUDA kernels of this layer, as a table of function pointers. A build without CUDA has no table.
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
#include "tessera/quant/masters/copy_halves.h"
#include "tessera/quant/masters/master_cast.h"

namespace tessera::quant {

// The largest number of weights in one launch. A stack of matrices is one weight. The weights' arguments fit into 4 KiB
// of kernel parameters.
inline constexpr int kWeightsOfLaunch = 24;

// The functions enqueue on `stream`, a stream of the current device. The object that make_kernels returns enqueues on
// its `stream`, which is a stream of `device`.
struct CudaTable {
  std::unique_ptr<Kernels> (*make_kernels)(base::Device device, base::CudaStream stream) = nullptr;
  // Casts like quant::cast (elementwise.h).
  void (*cast)(const void* source, DType from, void* target, DType to, std::int64_t count,
               base::CudaStream stream) = nullptr;
  // Adds term[i] to sum[i]. Both arrays have the element type `type`, which is an accumulator type.
  void (*add)(void* sum, DType type, const void* term, std::int64_t count, base::CudaStream stream) = nullptr;

  // Number formats (device_quantize.h). A function that takes a list of weights uses a fixed number of launches for
  // each kWeightsOfLaunch weights.
  std::unique_ptr<MasterCast> (*make_master_cast)(std::span<const MasterSlice> slices, base::Device device,
                                                  base::CudaStream stream, std::int64_t numbers) = nullptr;
  void (*copy_halves)(Half half, const std::uint8_t* source, std::span<std::uint8_t* const> targets,
                      base::Device device, base::CudaStream stream) = nullptr;
  void (*dequantize)(std::span<const Dequantization> weights, base::CudaStream stream) = nullptr;
  void (*take_amaxes)(std::span<const AmaxTask> matrices, base::CudaStream stream) = nullptr;
  void (*cast_fp8)(const Fp8Cast& cast, base::CudaStream stream) = nullptr;
  void (*cast_blocks)(const BlockCast& cast, base::CudaStream stream) = nullptr;
  void (*take_operand_amaxes)(const OperandAmaxes& amaxes, base::CudaStream stream) = nullptr;
  void (*cast_operand)(const OperandCast& cast, base::CudaStream stream) = nullptr;
  // Computes operand_scale (encoding.h) for a matrix with one fp32 scale, from its amax. Writes the multiplier to
  // *multiplier and the stored scale to *inverse.
  void (*scale_of_amax)(const Encoding& encoding, const float* amax, float* multiplier, float* inverse,
                        base::CudaStream stream) = nullptr;
  void (*update_multipliers)(const DelayedScaling& scaling, base::CudaStream stream) = nullptr;
  void (*create_columnwise)(std::span<const Transposition> weights, base::CudaStream stream) = nullptr;
  // Compute the same bytes as pad_scales and swizzle_scales of swizzle.h.
  void (*pad_scales)(const std::uint8_t* scales, Extent matrix, const Encoding& encoding, std::uint8_t* padded,
                     base::CudaStream stream) = nullptr;
  void (*swizzle_scales)(const std::uint8_t* padded, Extent matrix, const Encoding& encoding, std::uint8_t* swizzled,
                         base::CudaStream stream) = nullptr;
};

// Returns null in a build without CUDA.
const CudaTable* cuda_table();
// Returns the table. Throws Error in a build without CUDA; the message begins with `what`.
const CudaTable& require_cuda(std::string_view what);

}  // namespace tessera::quant
