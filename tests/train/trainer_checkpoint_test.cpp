// Checks that a run that resumes from a checkpoint has the same results as an uninterrupted run.
#include "tessera/train/trainer_checkpoint.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/base/files.h"
#include "tests/train/momentum_sgd.h"
#include "tests/train/training.h"

namespace tessera::train::testing {
namespace {

constexpr int kSaved = 3;  // steps before the checkpoint

// The second step is skipped: the optimizer has made fewer updates than the run has steps.
RunOptions options_of(quant::DType dtype) {
  return {.model = odd_model(), .dtype = dtype, .blocks = 6, .steps = kSaved + 2, .spoiled = {1}};
}

struct UpdatedTypes {
  quant::DType dtype;
  bool has_momentum_sgd = false;  // a rule of this test instead of AdamW
};

class ContinuedRun : public ::testing::TestWithParam<UpdatedTypes> {
 public:
  static RunOptions options() {
    RunOptions options = options_of(GetParam().dtype);
    if (GetParam().has_momentum_sgd) options.rule = momentum_sgd();
    return options;
  }
  static std::vector<checkpoint::Kind> state() {
    if (GetParam().has_momentum_sgd) return {checkpoint::Kind("momentum")};
    return {checkpoint::Kind("exp_avg"), checkpoint::Kind("exp_avg_sq")};
  }
};

TEST_P(ContinuedRun, HasTheBitsOfTheWholeRun) {
  const base::TempFolder root;
  const std::filesystem::path folder = root / "checkpoint";
  RunOptions writer = options();
  writer.after_step = [&](Trainer& trainer, int step) {
    if (step + 1 == kSaved) save_trainer(trainer, folder, kSaved, nlohmann::json::object());
  };
  const RunResult whole = run(writer);
  EXPECT_EQ(whole.skipped, (std::vector<bool>{false, true, false, false, false}));
  EXPECT_EQ(whole.updates, 4);

  const checkpoint::CheckpointReader stored(folder);
  EXPECT_EQ(stored.step(), kSaved);
  EXPECT_EQ(stored.state().at("updates"), 2);
  EXPECT_TRUE(stored.has_state(state()));
  EXPECT_FALSE(stored.has_state({checkpoint::Kind("other")}));
  EXPECT_EQ(stored.has_master(), GetParam().dtype == quant::DType::bf16);

  RunOptions reader = options();
  reader.gtp = 3;
  reader.left_out = {0, 1, 2};
  reader.before_step = [&](Trainer& trainer, int step) {
    if (step == kSaved) load_trainer(trainer, checkpoint::CheckpointReader(folder));
  };
  const RunResult rest = run(reader);
  EXPECT_EQ(rest.losses, std::vector<double>(whole.losses.begin() + kSaved, whole.losses.end()));
  EXPECT_EQ(rest.norms, std::vector<double>(whole.norms.begin() + kSaved, whole.norms.end()));
  EXPECT_EQ(rest.updates, whole.updates);
  EXPECT_EQ(rest.tensors, whole.tensors);
}

INSTANTIATE_TEST_SUITE_P(Types, ContinuedRun,
                         ::testing::Values(UpdatedTypes{quant::DType::fp32}, UpdatedTypes{quant::DType::bf16},
                                           UpdatedTypes{quant::DType::fp64}, UpdatedTypes{quant::DType::fp32, true},
                                           UpdatedTypes{quant::DType::bf16, true}),
                         [](const auto& info) {
                           return fmt::format("{}{}", name_of(info.param.dtype),
                                              info.param.has_momentum_sgd ? "_momentum_sgd" : "");
                         });

// Calls check(weight, master) for this rank's part of every parameter.
void for_each_master(Trainer& trainer,
                     const std::function<void(std::span<const float>, std::span<const float>)>& check) {
  for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id) {
    shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
    ASSERT_TRUE(parameter.has_master());
    const std::int64_t count = parameter.state_elements();
    std::vector<float> weight(static_cast<std::size_t>(count));
    trainer.parallel().kernels().cast(parameter.state_weight(), quant::DType::bf16, weight.data(), quant::DType::fp32,
                                      count);
    check(weight, parameter.master.as<float>().first(weight.size()));
  }
}

TEST(LoadTensors, TakesMastersFromTheWeightsWhereTheSourceHasNone) {
  const base::TempFolder root;
  const std::filesystem::path folder = root / "checkpoint";
  RunOptions options = options_of(quant::DType::bf16);
  int differing = 0;
  options.at_end = [&](Trainer& trainer) {
    for_each_master(trainer, [&](auto weight, auto master) {
      for (std::size_t i = 0; i < weight.size(); ++i) differing += weight[i] != master[i] ? 1 : 0;
    });
    save_trainer(trainer, folder, options.steps, nlohmann::json::object());
    const checkpoint::CheckpointReader reader(folder);
    const auto read = [&](const checkpoint::LoadTensor& request, bool) { reader.read(request); };
    load_tensors(trainer,
                 {.has_masters = false, .has_state = [](const auto&, const auto&) { return true; }, .read = read});
    for_each_master(trainer, [](auto weight, auto master) {
      EXPECT_TRUE(std::equal(weight.begin(), weight.end(), master.begin(), master.end()));
    });
  };
  run(options);
  EXPECT_GT(differing, 0);  // before the load, a master is more precise than its weight
}

}  // namespace
}  // namespace tessera::train::testing
