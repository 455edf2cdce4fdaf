// Tests signals, with which a graph and work outside the graph wait for each other.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "tessera/base/device.h"
#include "tessera/base/error.h"
#include "tessera/base/lanes/cuda_lane.h"
#include "tessera/ops/device/graph.h"
#include "tessera/ops/device/stream_scope.h"
#include "tessera/quant/device_kernels.h"

namespace tessera::train {
namespace {

// A lane and the kernels that a test runs on it.
struct Worker {
  Worker(const char* name, base::Device device)
      : lane(base::make_cuda_lane(name, device)),
        kernels(quant::make_cuda_kernels(device, lane->stream())),
        idle(std::size_t{256} << 20, device) {}

  // A delay that is longer than the time in which the host enqueues all launches of a test.
  void be_slow() {
    for (int i = 0; i < 50; ++i)
      kernels->fill(idle.data(), quant::DType::u8, 0, static_cast<std::int64_t>(idle.size()));
  }

  std::unique_ptr<base::Lane> lane;
  std::unique_ptr<quant::Kernels> kernels;
  base::Buffer idle;
};

class GraphBorder : public ::testing::Test {
 protected:
  void SetUp() override {
    if (base::cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  }
};

// Each launch reads the last value before it, and permits the next value after the read. The host is always ahead, so
// every signal is recorded again before a lane reaches it.
TEST_F(GraphBorder, SignalsWorkInBothDirections) {
  const base::Device device = base::cuda_device(0);
  Worker inside("inside", device), outside("outside", device);
  const ops::StreamScope scope(device, inside.lane->stream());
  constexpr int launches = 12;
  base::Buffer given(sizeof(float), device), seen(sizeof(float), device),
      read = base::Buffer::pinned(launches * sizeof(float));
  const auto give = [&](int value) { outside.kernels->fill(given.data(), quant::DType::fp32, value, 1); };
  base::Signal may_read, may_give;

  give(0);
  const base::Fence first = outside.lane->record(may_read);
  first.synchronize();
  ops::Graph graph(device);
  const auto capture = std::make_shared<const base::Capture>();
  graph.begin(inside.lane->stream());
  inside.lane->capture(capture);
  inside.lane->wait(first);
  for (int i = 0; i < 3; ++i) inside.be_slow();  // work that does not wait would have written the next value by then
  inside.kernels->copy(given.data(), seen.data(), sizeof(float));
  const base::Fence has_read = inside.lane->record(may_give);
  inside.be_slow();
  inside.lane->capture(nullptr);
  graph.end();

  for (int i = 0; i < launches; ++i) {
    graph.launch(inside.lane->stream());
    inside.kernels->copy(seen.data(), read.data() + static_cast<std::size_t>(i) * sizeof(float), sizeof(float));
    outside.lane->wait(has_read);
    outside.be_slow();
    outside.be_slow();
    give(i + 1);
    outside.lane->record(may_read);
  }
  outside.lane->synchronize();
  inside.lane->synchronize();
  for (int i = 0; i < launches; ++i) EXPECT_EQ(read.as<float>()[static_cast<std::size_t>(i)], i) << "launch " << i;
}

TEST_F(GraphBorder, RefusesOtherWaitsAcrossTheBorder) {
  const base::Device device = base::cuda_device(0);
  Worker inside("inside", device);
  const auto lane = [&] { return base::make_cuda_lane("outside", device); };
  const auto expect_error = [](base::Lane& lane, const std::string& what) {
    try {
      lane.synchronize();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(what), std::string::npos) << error.what();
    }
  };
  const ops::StreamScope scope(device, inside.lane->stream());
  base::Signal signal;
  ops::Graph graph(device);
  graph.begin(inside.lane->stream());
  inside.lane->capture(std::make_shared<const base::Capture>());
  inside.kernels->fill(inside.idle.data(), quant::DType::u8, 0, 1);
  const base::Fence plain = inside.lane->record(), crossing = inside.lane->record(signal);
  const auto outside = lane();
  outside->wait(plain);
  inside.lane->wait(crossing);
  inside.lane->capture(nullptr);
  graph.end();
  expect_error(*outside, "work outside of a graph cannot wait for a fence of the graph");
  expect_error(*inside.lane, "a graph cannot wait for a signal that a graph records");
}

// Each fence of a signal is a separate point for waiters outside the graph, even if the signal is recorded again.
TEST_F(GraphBorder, FencesOfASignalCompleteOneByOne) {
  const base::Device device = base::cuda_device(0);
  Worker worker("worker", device);
  base::Signal signal;
  const base::Fence first = worker.lane->record(signal);
  for (int i = 0; i < 100; ++i) worker.be_slow();
  const base::Fence second = worker.lane->record(signal);
  EXPECT_TRUE(first.wait_for(std::chrono::milliseconds(50)));
  EXPECT_FALSE(second.done());
  worker.lane->run([] { throw Error("lost"); });
  const base::Fence third = worker.lane->record(signal);
  EXPECT_TRUE(third.wait_for(std::chrono::seconds(60)));
  EXPECT_TRUE(first.error() == nullptr && second.error() == nullptr);
  EXPECT_FALSE(third.error() == nullptr);
}

// A lane that waits for failed work fails with the same error.
TEST_F(GraphBorder, AFollowerReceivesTheErrors) {
  const base::Device device = base::cuda_device(0);
  const auto one = base::make_cuda_lane("one", device), other = base::make_cuda_lane("other", device);
  base::Signal signal;
  other->follow(one->record(signal));
  other->synchronize();
  one->run([] { throw Error("lost"); });
  other->follow(one->record(signal));
  EXPECT_THROW(other->synchronize(), Error);
}

}  // namespace
}  // namespace tessera::train
