// Muon (Jordan et al. 2024). The formula is that of torch.optim.Muon. For a matrix w with A rows and B columns and its
// clipped gradient g:
//
//   M = M + (1 - momentum) (g - M)
//   u = g + momentum (M - g) with Nesterov, else M
//   X = the Newton-Schulz iterations of u (newton_schulz.h)
//   w = w (1 - rate * decay) - rate * scale(A, B) * X
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "tessera/ops/optimizer/matrices/matrix_rule.h"

namespace tessera::ops {

// scale(A, B). `moonshot` (arXiv 2502.16982) is 0.2 sqrt(max(A, B)), which gives updates the size of those of AdamW:
// rates and decays of AdamW remain valid. `original` is sqrt(max(1, A / B)).
enum class MuonScale : std::uint8_t { moonshot, original };

struct Muon {
  double momentum = 0.95, weight_decay = 0;
  bool nesterov = true;
  int steps = 5;  // Newton-Schulz steps
  MuonScale scale = MuonScale::moonshot;
  // True: the momentum is stored in bf16, and rounded stochastically as the moments of AdamW.
  bool has_bf16_momentum = false;
};

double muon_scale(MuonScale scale, std::int64_t rows, std::int64_t cols);
// Returns the rule with the state plane momentum, in the type of the master or in bf16. A momentum in bf16 needs
// masters in fp32; planes() throws Error for other masters.
std::shared_ptr<const MatrixRule> make_matrix_rule(const Muon& options);

// The numbers that change from update to update. They are computed in fp64. The kernels round each number, and the
// product of rate and UpdateShard::factor, once to the arithmetic type.
struct MuonScalars {
  double decay = 1, rate = 0, momentum = 0, momentum_rest = 0;
  std::int64_t nesterov = 1, number = 0;  // number: of the update
};
// Throws Error if `number` is below 1.
MuonScalars muon_scalars(const Muon& options, double lr, std::int64_t number);

// MatrixRule::directions and UpdateRule::update of the rule on the host, for one shard.
void muon_directions(const MuonScalars& scalars, const DirectionShard& shard, const Clip& clip, bool has_bf16_momentum);
void muon_update(const MuonScalars& scalars, const UpdateShard& shard, const Clip& clip);

namespace cuda {
// The same on a device, with as few launches as the types allow. `scalars` are those of the groups, in device memory.
// If `clip` is null, the factor is 1.
void muon_directions(std::span<const DirectionShard> shards, const MuonScalars* scalars, const Clip* clip,
                     base::CudaStream stream, bool has_bf16_momentum);
void muon_update(std::span<const UpdateShard> shards, const MuonScalars* scalars, const Clip* clip,
                 base::CudaStream stream);
}  // namespace cuda

}  // namespace tessera::ops
