// Trains a mixture of experts with a router of one's own. Each byte chooses two of four experts, and an expert is two
// matrices. nn::grouped_linear multiplies the rows of all experts; libtorch's operators do the rest. The network
// rotates the low six bits of a byte by its high two bits. The losses have the same bits on one rank and on four.
#include <ATen/ATen.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "tessera/comm/local/world.h"
#include "tessera/nn/grouped_linear.h"
#include "tessera/nn/layers/linear.h"
#include "tessera/train/trainer.h"

namespace {

using namespace tessera;

constexpr std::int64_t kExperts = 4, kChoices = 2, kIn = 9, kHidden = 21, kOut = 6, kTokens = 64;

class Network : public models::Model {
 public:
  explicit Network(const nn::Context& context)
      : context_(context),
        router_{.weight = add("router", {kExperts, kIn})},
        up_{.weight = add("up", {kExperts, kHidden, kIn})},
        down_{.weight = add("down", {kExperts, kOut, kHidden})} {}

  nn::Loss forward(const models::Batch& batch, const nn::PassState& pass, double scale) override {
    const at::Tensor x = at::cat({bits(batch.tokens, 8), at::ones({kTokens, 1})}, 1).requires_grad_();
    const at::Tensor logits = nn::column_linear(pass, router_, x, {}, kTokens).y;
    const auto [weights, experts] = at::topk(at::softmax(logits, 1), kChoices);
    // One row for each choice, ordered by expert. This rank has all experts and one block of tokens.
    const ops::Selection rows = ops::select_rows(experts.to(at::kInt), {0, kExperts, kExperts}, /*blocks=*/1);
    const at::Tensor up = at::tanh(nn::grouped_linear(pass, up_, x.index_select(0, rows.tokens), rows));
    const at::Tensor down = nn::grouped_linear(pass, down_, up, rows);
    const at::Tensor weight = weights.flatten().index_select(0, rows.tokens * kChoices + rows.slots);
    const at::Tensor y = at::zeros({kTokens, kOut}).index_add(0, rows.tokens, down * weight.unsqueeze(1));
    const at::Tensor sum = (y - bits(batch.targets, kOut)).square().sum();
    return {.objective = sum * scale, .sum = sum.detach().to(at::kDouble)};
  }

 private:
  // Registers a matrix, or a stack of matrices if `dims` has three numbers. The rows are sharded over gtp.
  nn::Weight add(const char* name, const std::vector<std::int64_t>& dims) {
    const layout::Shape shape = layout::matrix_shape(dims);
    return {.id = context_.program.parameters().add(
                {.name = name,
                 .dims = dims,
                 .compute = layout::replicated(shape, context_.tp_size()),
                 .initial_deviation = 1.0 / std::sqrt(static_cast<double>(shape.cols))}),
            .rows = shape.rows,
            .cols = shape.cols};
  }
  static at::Tensor bits(const at::Tensor& bytes, std::int64_t count) {
    return at::bitwise_and(at::bitwise_right_shift(bytes.unsqueeze(1), at::arange(count)), 1).to(at::kFloat) * 2 - 1;
  }
  const nn::Context& context_;
  nn::ColumnLinear router_;
  nn::GroupedLinear up_, down_;
};

models::Batch batch_of(std::int64_t block) {
  const at::Tensor bytes = at::remainder(at::arange(kTokens) * 37 + block * 101, 256);
  const at::Tensor low = at::bitwise_and(bytes, 63), turns = at::bitwise_right_shift(bytes, 6);
  const at::Tensor rotated = at::bitwise_left_shift(low, turns) + at::bitwise_right_shift(low, 6 - turns);
  return {.tokens = bytes, .targets = at::bitwise_and(rotated, 63)};
}

// Returns the mean loss of each step. A step has 4 blocks of bytes, which the ranks share.
std::vector<double> train_network(int gtp, int steps) {
  std::vector<double> losses;
  comm::run_local(gtp, {}, [&](comm::World& world) {
    const auto build = [](const nn::Context& context) { return std::make_unique<Network>(context); };
    train::Trainer trainer(world, {.step = {.build = build, .layout = nn::rank_layout({.gtp = gtp})}});
    train::set_initial_values(trainer.runtime(), 7);
    for (int step = 0; step < steps; ++step) {
      const auto batch = [&](int microbatch) { return batch_of(4 * step + microbatch * gtp + world.rank()); };
      const train::StepInput input{.microbatches = 4 / gtp, .tokens = 4 * kTokens, .batch = batch};
      const double loss = trainer.train_step(input, 2e-2).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

}  // namespace

int main() {
  const std::vector<double> one = train_network(1, 80), four = train_network(4, 80);
  std::printf("loss: %.4f at the first step, %.6f at the last; one rank and four ranks: %s\n", one.front(), one.back(),
              one == four ? "equal bits" : "different");
  return one == four && one.back() < 0.3 * one.front() ? 0 : 1;
}
