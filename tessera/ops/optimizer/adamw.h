// AdamW over a flat shard (Loshchilov & Hutter 2019). The formula is that of torch.optim.AdamW: decoupled decay, bias
// correction, eps outside the square root. The result of an element does not depend on other elements, on its position
// or on the sharding. The CPU and CUDA give the same bits.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/optimizer/clip.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

struct AdamW {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  std::int64_t step = 1;      // number of the update, from 1
  double gradient_scale = 1;  // the gradient is multiplied by this clip factor
};
struct AdamWBuffers {
  void* master = nullptr;  // in fp32 or fp64; the update overwrites it
  quant::DType master_type = quant::DType::fp32;
  void* weight = nullptr;  // receives the master, rounded to weight_type; may equal `master`; null: not written
  quant::DType weight_type = quant::DType::fp32;
  const void* gradient = nullptr;  // of any floating type
  quant::DType gradient_type = quant::DType::fp32;
  void* exp_avg = nullptr;     // in master_type; the update overwrites it
  void* exp_avg_sq = nullptr;  // in master_type; the update overwrites it
  std::int64_t count = 0;
  bool decays = true;  // false: weight_decay is ignored
  // *amax is raised to the greatest magnitude of the updated master, rounded to bf16. NaNs are ignored. Requires a
  // master in fp32. Null: the amax is not computed.
  float* amax = nullptr;
  // For a shard of a stack of matrices: the number of elements of a matrix, and the position of the shard's first
  // element in its matrix. Then *amax belongs to this matrix, the amaxes of the next matrices follow, and each amax is
  // raised by the elements of its own matrix. 0: the shard is part of one matrix.
  std::int64_t amax_elements = 0, amax_offset = 0;
};
void adamw(const AdamW& options, const AdamWBuffers& buffers);

// Scalars that change from step to step. They are computed in fp64, as in torch. The kernel rounds each scalar once to
// the arithmetic type.
struct StepScalars {
  double decay = 1, beta1_rest = 0, beta2 = 0, beta2_rest = 0, step_size = 0, root_correction2 = 1, eps = 0;
};
// Throws Error if the step is below 1.
StepScalars step_scalars(const AdamW& options);

// The scalars of an update whose number the host does not know yet. The host has not read yet whether the updates
// directly before were applied. The array has one entry for each possible number. The host computes all entries, so
// every device uses the same bits.
inline constexpr int kStepChoices = 3;
struct StepChoices {
  std::int64_t first = 1;  // the update number of choices[0]
  StepScalars choices[kStepChoices];
};
// options.step is the lowest possible number of the update. Throws Error if options.step is below 1.
StepChoices step_choices(const AdamW& options);

// Writes the sum of the squares of row r to sums[r], in fp64. The order of the additions depends only on `cols`.
void row_square_sums(const void* values, quant::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums);

// All pointers of these functions point to device memory. This includes `scalars` and `clip`, so that a captured graph
// reads their current values.
namespace cuda {
// Updates all shards with as few launches as the types allow. If `clip` is null, the clip factor is 1. A shard with
// `decays` false ignores scalars->decay. If clip->applies is 0, the masters are not updated, and each amax is that of
// the current master. Throws the errors of ops::adamw.
void adamw(std::span<const AdamWBuffers> shards, const StepScalars* scalars, const Clip* clip, base::CudaStream stream);
// If clip->applies is not 0, increments *updates and writes the scalars of this update number to *scalars. Otherwise
// *updates and *scalars are unchanged. An update number outside `choices` traps on the device.
void choose_step(const StepChoices* choices, const Clip* clip, std::int64_t* updates, StepScalars* scalars,
                 base::CudaStream stream);

void row_square_sums(const void* values, quant::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums, base::CudaStream stream);
// Computes ops::decide_update on the device.
void decide_update(const double* sum_of_squares, double limit, std::int64_t* stops, Clip* clip,
                   base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
