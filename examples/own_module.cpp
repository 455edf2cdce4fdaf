// Shards a network of one's own with gtp and trains it. The network consists of libtorch's operators and two weights.
// The network learns the Gray code of a byte. The losses have the same bits on one rank and on four.
#include <ATen/ATen.h>

#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "tessera/comm/local/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/train/trainer.h"

namespace {

using namespace tessera;

// y = x w^T. The weight is gathered before each use, and its gradient is reduced to the shards after the backward pass.
class Linear : public torch::autograd::Function<Linear> {
 public:
  static at::Tensor forward(nn::AutogradContext* ctx, const at::Tensor& x, const nn::PassState* pass,
                            const nn::Weight* w) {
    ctx->save_for_backward({x});
    nn::save_pass(ctx, *pass);
    nn::save_pointer(ctx, "weight", w);
    return at::matmul(x, nn::ConsumedWeight(*pass, *w).tensor().t());
  }
  static nn::variable_list backward(nn::AutogradContext* ctx, const nn::variable_list& gradients) {
    const at::Tensor x = ctx->get_saved_variables()[0];
    const nn::PassState pass = nn::saved_pass(ctx);
    const auto& w = *nn::saved_pointer<const nn::Weight>(ctx, "weight");
    const at::Tensor dx = at::matmul(gradients[0], nn::ConsumedWeight(pass, w).tensor());
    nn::produce_gradient(pass, w, [&](at::Tensor& gradient, bool accumulate) {
      const at::Tensor dw = at::matmul(gradients[0].t(), x);
      accumulate ? gradient.add_(dw) : gradient.copy_(dw);
    });
    return {dx, {}, {}};
  }
};

class Network : public models::Model {
 public:
  explicit Network(const nn::Context& context)
      : context_(context), first_(add("first", 61, 9)), second_(add("second", 8, 61)) {}

  nn::Loss forward(const models::Batch& batch, const nn::PassState& pass, double scale) override {
    const at::Tensor x = at::cat({bits(batch.tokens), at::ones({batch.tokens.size(0), 1})}, 1).requires_grad_();
    const at::Tensor hidden = at::tanh(Linear::apply(x, &pass, &first_));
    const at::Tensor error = Linear::apply(hidden, &pass, &second_) - bits(batch.targets);
    const at::Tensor sum = error.square().sum();
    return {.objective = sum * scale, .sum = sum.detach().to(at::kDouble)};
  }

 private:
  // Registers a weight that each rank of gtp stores a part of. The number of rows need not be a multiple of gtp.
  nn::Weight add(const char* name, std::int64_t rows, std::int64_t cols) {
    const layout::Layout compute = layout::replicated({rows, cols}, context_.tp_size());
    const double deviation = 1.0 / std::sqrt(static_cast<double>(cols));
    return {.id = context_.program.parameters().add(
                {.name = name, .dims = {rows, cols}, .compute = compute, .initial_deviation = deviation}),
            .rows = rows,
            .cols = cols};
  }
  static at::Tensor bits(const at::Tensor& bytes) {
    return at::bitwise_and(at::bitwise_right_shift(bytes.unsqueeze(1), at::arange(8)), 1).to(at::kFloat) * 2 - 1;
  }
  const nn::Context& context_;
  nn::Weight first_, second_;
};

// Returns the mean loss of each step. A step has 4 blocks of 64 bytes, which the ranks share.
std::vector<double> train_network(int gtp, int steps) {
  std::vector<double> losses;
  comm::run_local(gtp, {}, [&](comm::World& world) {
    const auto build = [](const nn::Context& context) { return std::make_unique<Network>(context); };
    train::Trainer trainer(world, {.step = {.build = build, .layout = nn::rank_layout({.gtp = gtp})}});
    train::set_initial_values(trainer.runtime(), 7);
    for (int step = 0; step < steps; ++step) {
      const auto batch = [&](int microbatch) {
        const std::int64_t block = microbatch * gtp + world.rank();  // with gtp alone, ranks read different blocks
        const at::Tensor bytes = at::remainder(at::arange(64) * 37 + block * 64 + step * 11, 256);
        return models::Batch{.tokens = bytes, .targets = at::bitwise_xor(bytes, at::bitwise_right_shift(bytes, 1))};
      };
      const double loss = trainer.train_step({.microbatches = 4 / gtp, .tokens = 256, .batch = batch}, 1e-2).loss;
      if (world.rank() == 0) losses.push_back(loss);
    }
  });
  return losses;
}

}  // namespace

int main() {
  const std::vector<double> one = train_network(1, 200), four = train_network(4, 200);
  std::printf("loss: %.4f at the first step, %.6f at the last; one rank and four ranks: %s\n", one.front(), one.back(),
              one == four ? "equal bits" : "different");
  return one == four && one.back() < 0.1 * one.front() ? 0 : 1;
}
