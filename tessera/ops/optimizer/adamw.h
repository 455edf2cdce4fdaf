// AdamW over a flat shard (Loshchilov & Hutter 2019), as torch.optim.AdamW: decoupled decay, bias correction, eps
// outside the square root. The result of an element depends on that element alone, not on its position or the cut of
// the range, and is the same on the CPU and on CUDA.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/optimizer/clip.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

struct AdamW {
  double lr = 0, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0;
  std::int64_t step = 1;      // from 1
  double gradient_scale = 1;  // clip factor, multiplied into the gradient
};
struct AdamWBuffers {
  void* master = nullptr;  // fp32 or fp64, updated
  quant::DType master_type = quant::DType::fp32;
  void* weight = nullptr;  // written as round(master); may equal master; null: nothing to write
  quant::DType weight_type = quant::DType::fp32;
  const void* gradient = nullptr;  // any floating type
  quant::DType gradient_type = quant::DType::fp32;
  void* exp_avg = nullptr;     // master_type, updated
  void* exp_avg_sq = nullptr;  // master_type, updated
  std::int64_t count = 0;
  bool decays = true;  // false: the options' weight_decay does not count
  // Takes the greatest magnitude of the updated master, an fp32 one, rounded to bf16, where that is more than it holds;
  // NaNs are left out. Null: it is not taken.
  float* amax = nullptr;
};
void adamw(const AdamW& options, const AdamWBuffers& buffers);

// What changes from step to step, worked out in fp64 as torch does; rounded once to the arithmetic type where it is
// used.
struct StepScalars {
  double decay = 1, beta1_rest = 0, beta2 = 0, beta2_rest = 0, step_size = 0, root_correction2 = 1, eps = 0;
};
// Errors: a step below 1.
StepScalars step_scalars(const AdamW& options);

// Those of an update whose number the host does not know yet, since it has not seen whether the updates right before it
// took place: one for each number that it may have. The host works all of them out, so that every device takes the same
// bits.
inline constexpr int kStepChoices = 3;
struct StepChoices {
  std::int64_t first = 1;  // the number that choices[0] is for
  StepScalars choices[kStepChoices];
};
// options.step: the lowest number. Errors: a step below 1.
StepChoices step_choices(const AdamW& options);

// sums[r] = sum over the row of value^2 in fp64, elements in a fixed order that depends on `cols` alone.
void row_square_sums(const void* values, quant::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums);

// All pointers are the device's, those of `scalars` and `clip` too, so that a captured graph follows the steps.
namespace cuda {
// Updates all shards; as few launches as types allow. `clip` null: factor 1. The buffers' `decays` decides whether
// scalars->decay counts. Where clip->applies says that there is no update, amaxes are those of the masters as they are.
// Errors: as adamw.
void adamw(std::span<const AdamWBuffers> shards, const StepScalars* scalars, const Clip* clip, base::CudaStream stream);
// Counts an update where clip->applies says that there is one: *updates is then its number and *scalars what it takes.
// Else both stay. A number that is none of the choices' ends the device's work with an error.
void choose_step(const StepChoices* choices, const Clip* clip, std::int64_t* updates, StepScalars* scalars,
                 base::CudaStream stream);

void row_square_sums(const void* values, quant::DType type, std::int64_t rows, std::int64_t cols, std::int64_t stride,
                     double* sums, base::CudaStream stream);
// The same as ops::decide_update.
void decide_update(const double* sum_of_squares, double limit, std::int64_t* stops, Clip* clip,
                   base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
