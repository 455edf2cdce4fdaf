// A rule that updates whole matrices. An update has three stages:
//
//   directions  computes the state and the directions u from gradients, one element at a time
//   iterate     computes X from u, for whole matrices
//   update      computes masters from X, one element at a time (UpdateRule::update; the gradient is X)
//
// train/update/matrix_update.h runs the stages and moves u and X between ranks.
#pragma once
#include <cstdint>
#include <span>

#include "tessera/ops/optimizer/matrices/newton_schulz.h"
#include "tessera/ops/optimizer/update_rule.h"

namespace tessera::ops {

// The part of a parameter whose directions this rank computes. The buffers are flat and have the same elements.
struct DirectionShard {
  const void* gradient = nullptr;  // of any floating type
  quant::DType gradient_type = quant::DType::fp32;
  quant::DType master_type = quant::DType::fp32;  // of the arithmetic: fp32 or fp64
  void* plane = nullptr;                          // the only state plane of the rule; overwritten
  void* direction = nullptr;                      // receives u, rounded once
  quant::DType direction_type = quant::DType::fp32;
  std::int64_t count = 0;  // number of elements
  int group = 0;           // as in UpdateShard, like the members below
  LogicalIndices indices;
  base::PhiloxKey rounding_key{};
};
// Throws Error for a negative count, and if a buffer is null.
void check_shard(const DirectionShard& shard);

// Has one state plane. Immutable. Any thread may call the functions. The results of `directions` and `update` are those
// of an element alone. The bits of `iterate` depend on the matrix alone, not on the batch.
class MatrixRule : public UpdateRule {
 public:
  const MatrixRule* matrix_rule() const final { return this; }

  // Computes directions. The gradient is multiplied by clip->factor. If clip->applies is 0, no plane changes, and the
  // directions are undefined. Pointers are as in UpdateRule::update. Throws the errors of check_shard.
  virtual void directions(std::span<const DirectionShard> shards, const std::byte* scalars, const Clip* clip,
                          base::CudaStream stream) const = 0;
  // Returns the bytes of MatrixBatch::scratch that `iterate` needs on a device.
  virtual std::int64_t scratch_bytes(const MatrixBatch& batch) const = 0;
  // Replaces directions by X.
  virtual void iterate(const MatrixBatch& batch, base::CudaStream stream) const = 0;
  // Returns UpdateShard::factor of a matrix, and the floating-point operations of its iterations.
  virtual double factor(std::int64_t rows, std::int64_t cols) const = 0;
  virtual double flops(std::int64_t rows, std::int64_t cols) const = 0;
};

}  // namespace tessera::ops
