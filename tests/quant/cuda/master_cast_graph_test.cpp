// A MasterCast, and the unpacking of stacks, in a CUDA graph. Compiled only with CUDA.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/quant/device_ranks.h"

namespace tessera::quant {
namespace {

class GraphLaunches : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    if (launched_ != nullptr) cudaGraphExecDestroy(launched_);
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  // The capture uses the strictest mode, in which synchronizing calls and allocations fail.
  void capture(const std::function<void()>& work) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal), cudaSuccess);
    work();
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph_), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&launched_, graph_, 0), cudaSuccess);
  }
  void capture(MasterCast& cast) {
    capture([&] {
      cast.compute_amaxes();
      cast.cast();
    });
  }
  std::size_t nodes() const {
    std::size_t count = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph_, nullptr, &count), cudaSuccess);
    return count;
  }
  void launch() {
    ASSERT_EQ(cudaGraphLaunch(launched_, stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t launched_ = nullptr;
};

std::vector<DeviceWeight<float>> graph_weights(std::int64_t copies) {
  std::vector<DeviceWeight<float>> weights;
  for (std::int64_t copy = 0; copy < copies; ++copy)
    for (const NamedEncoding& named : all_encodings()) {
      const Extent matrix{.rows = 100 + 29 * copy, .cols = 288};
      weights.push_back({named.encoding, matrix, all_kinds_of_values(matrix.elements(), static_cast<unsigned>(copy))});
    }
  return weights;
}

std::vector<std::vector<Slice>> whole_slices(const std::vector<DeviceWeight<float>>& weights) {
  std::vector<std::vector<Slice>> slices;
  for (const auto& weight : weights) slices.push_back({{0, weight.matrix.elements()}});
  return slices;
}

TEST_F(GraphLaunches, CastsTheCurrentMasterAtEachLaunch) {
  std::vector<DeviceWeight<float>> weights = graph_weights(2);
  DeviceRank<float> rank(weights, whole_slices(weights), 0, stream_);
  capture(rank.cast());
  for (const float factor : {1.0F, 0.37F, 5.0F}) {
    for (std::size_t w = 0; w < weights.size(); ++w) {
      for (float& value : weights[w].master) value *= factor;
      rank.parts(w).master.set(weights[w].master);
    }
    launch();
    expect_slices_of_whole(rank, weights);
  }
}

// The cast launches one fill and three kernels.
TEST_F(GraphLaunches, UsesTheSameNumberOfLaunchesForAnyNumberOfWeights) {
  const std::vector<DeviceWeight<float>> weights = graph_weights(6);
  DeviceRank<float> rank(weights, whole_slices(weights), 0, stream_);
  capture(rank.cast());
  EXPECT_EQ(nodes(), 4U);
}

TEST_F(GraphLaunches, AStackOfAnySizeIsUnpackedInOneLaunch) {
  constexpr std::int64_t kMatrices = 128;
  const Extent matrix{.rows = 20, .cols = 32};
  const Encoding encoding = all_encodings()[7].encoding;
  DeviceArray<std::uint8_t> codes(kMatrices * matrix.elements() / 2), scales(kMatrices * 4);
  DeviceArray<float> amaxes(kMatrices);
  DeviceArray<bfloat16> target(kMatrices * matrix.elements());
  const Dequantization stack{.source = {.data = codes.data(), .scales = scales.data(), .tensor_amax = amaxes.data()},
                             .matrix = matrix,
                             .encoding = encoding,
                             .target = target.data(),
                             .matrices = kMatrices};
  capture([&] { kernels().dequantize({&stack, 1}, stream_); });
  EXPECT_EQ(nodes(), 1U);
}

}  // namespace
}  // namespace tessera::quant
