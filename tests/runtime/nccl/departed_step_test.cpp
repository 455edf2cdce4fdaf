// A step that departs from its schedule on GPUs, over replicas.
#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tessera/runtime/runtime.h"
#include "tests/comm/nccl/run.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime {
namespace {

constexpr std::int64_t kRows = 5, kCols = 3;

// Returns the value of every element of a gradient. The value is an integer, so sums are exact.
float gradient_of(int step, int microbatch, int replica, schedule::ParameterId id) {
  return static_cast<float>(1 + step * 1000 + microbatch * 100 + replica * 10 + id);
}

class DepartedStep : public comm::NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    if (IsSkipped()) return;
    world_ = make_world({});
    parallel_.emplace(shard::dense_parallel(*world_, 1, 1, ranks()));
    const RuntimeOptions budgets{.gather_budget = schedule::kMinimum, .reduce_budget = schedule::kMinimum};
    runtime_.emplace(*parallel_, shard::ParameterTypes{}, budgets);
    for (const char* name : {"first", "second"})
      runtime_->parameters().add(
          {.name = name, .dims = {kRows, kCols}, .compute = layout::replicated({kRows, kCols}, 1)});
    for (schedule::ParameterId id = 0; id < runtime_->parameters().size(); ++id) {
      runtime_->parameter(id).planes.front().data.fill_zero();
      runtime_->program().publish(id);
    }
  }

  // Compute is slow. If an operation reads the gradient too early, the memory does not contain the gradient yet.
  void use(int step, int microbatch, schedule::ParameterId id) {
    runtime_->program().consume(id, {microbatch, schedule::Pass::backward});
    runtime_->program().release(id, {microbatch, schedule::Pass::backward});
    const GradientBuffer buffer = runtime_->program().grad_buffer(id, microbatch);
    ASSERT_FALSE(buffer.accumulate);
    parallel_->compute->delay(0.2);
    parallel_->compute->run([&] {
      parallel_->kernels().fill(buffer.data, quant::DType::fp32, gradient_of(step, microbatch, rank(), id),
                                kRows * kCols);
    });
    runtime_->program().produce(id, microbatch);
  }

  // departs: whether the step departs, because its second microbatch uses no weight. In this case the host does not
  // wait before it issues the sums over replicas.
  void train(int step, bool departs) {
    runtime_->program().begin_step(schedule::StepKind::train, 2);
    for (int microbatch = 0; microbatch < 2; ++microbatch) {
      runtime_->program().begin_microbatch(microbatch);
      for (schedule::ParameterId id = 0; id < runtime_->parameters().size() && (microbatch == 0 || !departs); ++id)
        use(step, microbatch, id);
      runtime_->program().end_microbatch(microbatch);
    }
    runtime_->program().end_step();
    for (schedule::ParameterId id = 0; id < runtime_->parameters().size(); ++id) runtime_->program().publish(id);
    runtime_->finish(runtime_->pending());
  }

  void expect_sums(int step, bool departs) {
    for (schedule::ParameterId id = 0; id < runtime_->parameters().size(); ++id) {
      float expected = 0;
      for (int replica = 0; replica < ranks(); ++replica)
        for (int microbatch = 0; microbatch < (departs ? 1 : 2); ++microbatch)
          expected += gradient_of(step, microbatch, replica, id);
      std::vector<float> sums(kRows * kCols);
      parallel_->compute->synchronize();
      base::copy_bytes(sums.data(), runtime_->parameter(id).state_gradient(), sums.size() * sizeof(float));
      EXPECT_EQ(sums, std::vector<float>(sums.size(), expected)) << "step " << step << ", weight " << id;
    }
  }

  std::unique_ptr<comm::World> world_;
  std::optional<shard::ParallelGroups> parallel_;
  std::optional<Runtime> runtime_;
};

TEST_F(DepartedStep, SumsOverReplicasWhatComputeHasWritten) {
  for (int step = 0; step < 4; ++step) {
    const bool departs = step == 2;
    train(step, departs);
    EXPECT_EQ(runtime_->statistics().recorded, step == 0);
    EXPECT_EQ(runtime_->statistics().departed, departs) << "step " << step;
    expect_sums(step, departs);
  }
}

}  // namespace
}  // namespace tessera::runtime
