// Checks that training continues with the same bits after all stored weights have moved into a flat buffer on each
// rank.
#include "tessera/shard/replace_storage.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>

#include "tests/train/training.h"

namespace tessera::train {
namespace {

// The flat buffers must outlive the trainers.
class FlatBuffers {
 public:
  void take(Trainer& trainer) {
    runtime::Runtime& runtime = trainer.runtime();
    runtime.wait_until_idle();
    trainer.parallel().compute->synchronize();
    std::size_t bytes = 0;
    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id)
      bytes += shard::storage_bytes(runtime.parameter(id));
    std::byte* next = make(bytes);
    for (schedule::ParameterId id = 0; id < runtime.parameters().size(); ++id) {
      shard::ShardedParameter& parameter = runtime.parameter(id);
      const shard::FlatMemory memory{.data = next, .bytes = shard::storage_bytes(parameter)};
      shard::replace_storage(parameter, memory);
      next += memory.bytes;
    }
  }

 private:
  std::byte* make(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    buffers_.emplace_back(bytes);
    return buffers_.back().data();
  }

  std::mutex mutex_;
  std::vector<base::Buffer> buffers_;
};

class TrainAfterReplaceStorage : public ::testing::TestWithParam<quant::Format> {};
INSTANTIATE_TEST_SUITE_P(Formats, TrainAfterReplaceStorage,
                         ::testing::Values(quant::Format::bf16, quant::Format::fp8, quant::Format::fp8_block,
                                           quant::Format::mxfp8, quant::Format::nvfp4),
                         [](const auto& info) { return std::string(name_of(info.param)); });

void expect_same_bits_after_moves(testing::RunOptions options) {
  options.split_masters = options.gtp % 2 == 1;
  const testing::RunResult expected = testing::run(options);
  FlatBuffers buffers;
  options.before_step = [&](Trainer& trainer, int step) {
    if (step == 0 || step == 2)
      // Storage is replaced before the step is recorded, and again while steps follow the schedule.
      buffers.take(trainer);
  };
  EXPECT_TRUE(testing::run(options) == expected) << "gtp " << options.gtp;
  EXPECT_NE(expected.losses.front(), expected.losses.back());
}

TEST_P(TrainAfterReplaceStorage, GivesTheSameBits) {
  testing::RunOptions options{
      .model = testing::odd_model(), .dtype = quant::DType::bf16, .blocks = 6, .steps = 4, .wire = GetParam()};
  // All numbers of columns are even.
  options.model.intermediate_size = 38;
  for (const int gtp : {1, 3}) {
    options.gtp = gtp;
    expect_same_bits_after_moves(options);
  }
}

TEST_P(TrainAfterReplaceStorage, GivesTheSameBitsOfExperts) {
  testing::RunOptions options{.model = testing::sparse_model(),
                              .gtp = 2,
                              .experts = nn::ExpertDegrees{.egtp = 2},
                              .dtype = quant::DType::bf16,
                              .blocks = 4,
                              .steps = 4,
                              .wire = GetParam()};
  options.model.experts->width = 12;
  expect_same_bits_after_moves(options);
}

}  // namespace
}  // namespace tessera::train
