// The CUDA functions of this layer that CudaTable lists for number formats, and the CUDA functions for exact sums. Each
// function is defined in a .cu file.
#pragma once
#include <memory>
#include <span>

#include "tessera/quant/cuda_table.h"
#include "tessera/quant/exact_sum.h"

namespace tessera::quant::cuda {

// Implement Kernels::add_exactly, Kernels::count_not_finite and Kernels::round_exactly.
void add_exactly(const double* values, std::int64_t count, ExactSum* sum, base::CudaStream stream);
void count_not_finite(const float* values, std::int64_t count, std::int64_t* counter, base::CudaStream stream);
void round_exactly(const ExactSum* sum, double* total, base::CudaStream stream);

std::unique_ptr<MasterCast> make_master_cast(std::span<const MasterSlice> slices, base::Device device,
                                             base::CudaStream stream, std::int64_t numbers);
void copy_halves(Half half, const std::uint8_t* source, std::span<std::uint8_t* const> targets, base::Device device,
                 base::CudaStream stream);
void dequantize(std::span<const Dequantization> weights, base::CudaStream stream);
void take_amaxes(std::span<const AmaxTask> matrices, base::CudaStream stream);
void cast_fp8(const Fp8Cast& cast, base::CudaStream stream);
void cast_blocks(const BlockCast& cast, base::CudaStream stream);
void take_operand_amaxes(const OperandAmaxes& amaxes, base::CudaStream stream);
void cast_operand(const OperandCast& cast, base::CudaStream stream);
void scale_of_amax(const Encoding& encoding, const float* amax, float* multiplier, float* inverse,
                   base::CudaStream stream);
void update_multipliers(const DelayedScaling& scaling, base::CudaStream stream);
void create_columnwise(std::span<const Transposition> weights, base::CudaStream stream);
void pad_scales(const std::uint8_t* scales, Extent matrix, const Encoding& encoding, std::uint8_t* padded,
                base::CudaStream stream);
void swizzle_scales(const std::uint8_t* padded, Extent matrix, const Encoding& encoding, std::uint8_t* swizzled,
                    base::CudaStream stream);

}  // namespace tessera::quant::cuda
