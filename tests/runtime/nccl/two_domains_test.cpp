// Weights of two domains on GPUs: their gathers share an arena and run on separate lanes, ahead of slow compute.
#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tessera/runtime/runtime.h"
#include "tests/comm/nccl/run.h"

namespace tessera::runtime {
namespace {

constexpr std::int64_t kWidth = 256;
// Rows of a layer's weights. The first two are in the first domain, the others in the second.
constexpr std::int64_t kHeights[] = {24, 16, 336, 168};

// Returns the value of every element of a weight. fp32 represents it exactly.
float value_of(int step, schedule::ParameterId id) {
  return static_cast<float>(1 + step * 1000 + id);
}

// Domain 0 stores a weight over all ranks. Domain 1 stores it over half of the ranks, twice.
shard::RankLayout layout_of(int ranks) {
  const mesh::Grid first{{"a", 1}, {"b", ranks}, {"c", 1}};
  const mesh::Grid second{{"u", 1}, {"v", ranks / 2}, {"w", 2}, {"r", 1}};
  return {.mesh = mesh::Mesh({first, second}, mesh::live_places(first, {})),
          .domains = {{.compute = {"a"}, .storage = {"b"}, .duplicates = {}, .replicas = {"c"}},
                      {.compute = {"u"}, .storage = {"v"}, .duplicates = {"w"}, .replicas = {"r"}}}};
}

class TwoDomains : public comm::NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    if (IsSkipped()) return;
    if (ranks() % 2 != 0 || ranks() < 4) GTEST_SKIP() << ranks() << " ranks, expected 4, 6, ...";
    world_ = make_world({});
    parallel_.emplace(shard::make_parallel_groups(*world_, layout_of(ranks())));
  }

  void add_weights(int layers) {
    for (int layer = 0; layer < layers; ++layer)
      for (int weight = 0; weight < 4; ++weight) {
        const layout::Shape shape{kHeights[weight], kWidth};
        shard::ParameterSpec spec{.name = "w" + std::to_string(runtime_->parameters().size()),
                                  .dims = {shape.rows, shape.cols},
                                  .compute = layout::replicated(shape, 1),
                                  .trainable = false};
        spec.domain = weight / 2;
        runtime_->parameters().add(std::move(spec));
      }
    seen_ =
        base::Buffer(static_cast<std::size_t>(runtime_->parameters().size()) * 2 * sizeof(float), parallel_->device);
  }

  // Compute waits for a random time before it reads the first and the last element of the weight.
  void use(schedule::ParameterId id) {
    const WeightView view = runtime_->program().consume(id, {0, schedule::Pass::forward});
    parallel_->compute->delay(std::uniform_real_distribution<double>(0, 0.002)(random_));
    const auto* elements = static_cast<const float*>(view.weight().data);
    const std::int64_t last = runtime_->parameters().local_compute(id).size - 1;
    auto* seen = reinterpret_cast<float*>(seen_.data()) + 2 * id;
    parallel_->compute->run([&] {
      parallel_->kernels().copy(elements, seen, sizeof(float));
      parallel_->kernels().copy(elements + last, seen + 1, sizeof(float));
    });
    runtime_->program().release(id, {0, schedule::Pass::forward});
  }

  void step(int number) {
    runtime_->program().begin_step(schedule::StepKind::train, 1);
    runtime_->program().begin_microbatch(0);
    for (schedule::ParameterId id = 0; id < runtime_->parameters().size(); ++id) use(id);
    for (schedule::ParameterId id = runtime_->parameters().size() - 1; id >= 0; --id) use(id);
    runtime_->program().end_microbatch(0);
    runtime_->program().end_step();
    expect_values(number);
    for (schedule::ParameterId id = 0; id < runtime_->parameters().size(); ++id) publish(number + 1, id);
    runtime_->finish(runtime_->pending());
  }

  void publish(int step, schedule::ParameterId id) {
    shard::Plane& plane = runtime_->parameter(id).planes.front();
    parallel_->compute->run([&] {
      parallel_->kernels().fill(plane.data.data(), quant::DType::fp32, value_of(step, id), plane.local_storage.size);
    });
    runtime_->program().publish(id);
  }

  void expect_values(int step) {
    std::vector<float> seen(static_cast<std::size_t>(runtime_->parameters().size()) * 2);
    parallel_->compute->synchronize();
    base::copy_bytes(seen.data(), seen_.data(), seen.size() * sizeof(float));
    for (schedule::ParameterId id = 0; id < runtime_->parameters().size(); ++id)
      for (std::size_t i = 0; i < 2; ++i)
        EXPECT_EQ(seen[2 * static_cast<std::size_t>(id) + i], value_of(step, id)) << "step " << step << ", w" << id;
  }

  std::unique_ptr<comm::World> world_;
  std::optional<shard::ParallelGroups> parallel_;
  std::optional<Runtime> runtime_;
  base::Buffer seen_;
  std::mt19937 random_{7};
};

TEST_F(TwoDomains, ComputeReadsTheWeightsThatItConsumes) {
  for (const int layers : {3, 5})
    for (const std::int64_t budget : {700'000, 1'000'000, 1'400'000}) {
      SCOPED_TRACE(std::to_string(layers) + " layers, budget " + std::to_string(budget));
      runtime_.emplace(*parallel_, shard::ParameterTypes{}, RuntimeOptions{.gather_budget = budget});
      add_weights(layers);
      for (schedule::ParameterId id = 0; id < runtime_->parameters().size(); ++id) publish(0, id);
      for (int number = 0; number < 6; ++number) step(number);
      EXPECT_EQ(runtime_->schedule_statistics().planned, 1);
      EXPECT_EQ(runtime_->schedule_statistics().departed_steps, 0);
      runtime_.reset();
    }
}

}  // namespace
}  // namespace tessera::runtime
