// Tests the events of stashed activations: when they are recorded, and with which bytes and way.
#include "tessera/nn/stash.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/nn/recompute.h"
#include "tessera/runtime/runtime.h"

namespace tessera::nn {
namespace {

using Events = std::vector<std::string>;

// Stashes twice in forward and fetches in reverse order.
class TwoStashes : public torch::autograd::Function<TwoStashes> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const PassState* pass, bool kept) {
    stash(ctx, *pass, kept, items_of({x, at::Tensor(), x.to(at::kDouble)}), Tokens::own);
    stash(ctx, *pass, kept, {{.bytes = 5}}, Tokens::all);
    save_pass(ctx, *pass);
    return x.clone();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const PassState pass = saved_pass(ctx);
    fetch(ctx, pass, 1);
    fetch(ctx, pass, 0);
    return {gradients[0], {}, {}};
  }
};

Events events_of_two_stashes(int tp, bool sequence_parallel, bool requires_grad) {
  Events events;
  comm::run_local(tp, {}, [&](comm::World& world) {
    shard::ParallelGroups parallel = shard::make_parallel_groups(world, rank_layout({.tp = tp}));
    runtime::Runtime runtime(parallel, {});
    Context context{.program = runtime.program(), .sequence_parallel = sequence_parallel};
    runtime.program().begin_step(schedule::StepKind::train, 1);
    runtime.program().begin_microbatch(0);
    const at::Tensor x = at::empty({3}, at::kFloat).fill_(1).requires_grad_(requires_grad);
    const PassState pass{.context = context, .id = {0}};
    const at::Tensor y = TwoStashes::apply(x, &pass, is_kept(x));
    if (requires_grad) y.sum().backward();
    runtime.program().end_microbatch(0);
    runtime.program().end_step();
    if (world.rank() != 0) return;
    for (const schedule::Event& event : runtime.trace())
      events.push_back(std::string(name_of(event.pass)) + " " + std::string(name_of(event.kind)) + " " + event.op +
                       " " + std::to_string(event.bytes));
  });
  return events;
}

TEST(Stash, RecordsWhetherTheTokensAreTheRanksOwn) {
  const Events whole{"forward stash keep 36", "forward stash keep 5", "backward fetch keep 5",
                     "backward fetch keep 36"};
  const Events split{"forward stash shard 36", "forward stash keep 5", "backward fetch keep 5",
                     "backward fetch shard 36"};
  EXPECT_EQ(events_of_two_stashes(1, true, true), whole);
  EXPECT_EQ(events_of_two_stashes(2, false, true), whole);
  EXPECT_EQ(events_of_two_stashes(2, true, true), split);
  EXPECT_EQ(events_of_two_stashes(2, true, false), Events{});
}

TEST(Stash, ItemsAreTheMemoryOfDefinedTensors) {
  const at::Tensor x = at::empty({3, 2}, at::kFloat);
  const std::vector<runtime::StashItem> items = items_of({x, at::Tensor(), x[1]});
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0].data, x.const_data_ptr());
  EXPECT_EQ(items[0].bytes, 24);
  EXPECT_EQ(items[1].data, x.const_data_ptr<float>() + 2);
  EXPECT_EQ(items[1].bytes, 8);
  EXPECT_THROW(items_of({x.t()[1]}), Error);  // every second number
  EXPECT_EQ(items_of({x.to(at::kMeta)})[0].data, nullptr);
}

TEST(Stash, KeepsOnlyInputsThatNeedAGradient) {
  const at::Tensor plain = at::empty({1}), leaf = at::empty({1}).requires_grad_();
  EXPECT_FALSE(is_kept(plain));
  EXPECT_TRUE(is_kept(leaf));
  const at::NoGradGuard none;
  EXPECT_FALSE(is_kept(leaf));
}

TEST(BlockRecompute, IsOnePolicyOrOnePerBlock) {
  EXPECT_EQ(BlockRecompute().of(3), Recompute::none);
  EXPECT_EQ(BlockRecompute(Recompute::full).of(3), Recompute::full);
  const BlockRecompute listed(std::vector<Recompute>{Recompute::selective, Recompute::full});
  EXPECT_EQ(listed.of(0), Recompute::selective);
  EXPECT_EQ(listed.of(1), Recompute::full);
  EXPECT_EQ(listed.of(2), Recompute::none);
  EXPECT_EQ(name_of(Recompute::selective), "selective");
}

}  // namespace
}  // namespace tessera::nn
