// An exact sum in a CUDA graph. Compiled only with CUDA.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <vector>

#include "tessera/quant/device_kernels.h"
#include "tests/quant/on_device.h"

namespace tessera::quant {
namespace {

class GraphExactSum : public OnDevice {};

// The capture uses the strictest mode, in which synchronizing calls and allocations fail.
TEST_F(GraphExactSum, AddsTheCurrentValuesAtEachLaunch) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const auto kernels = make_cuda_kernels(kTestDevice, stream);
  DeviceArray<double> values(5000), total(1);
  DeviceArray<std::int64_t> words(kExactSumWords);
  auto* sum = reinterpret_cast<ExactSum*>(words.data());
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t launched = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  kernels->fill(words.data(), DType::i64, 0, kExactSumWords);
  kernels->add_exactly(values.data(), 5000, sum);
  kernels->round_exactly(sum, total.data());
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&launched, graph, 0), cudaSuccess);
  for (const double scale : {1.0, 0x1p-1060, 0x1p900}) {
    std::vector<double> given(5000);
    for (std::size_t i = 0; i < given.size(); ++i) given[i] = static_cast<double>(i * i) * scale;
    ExactSum expected;
    add(expected, given);
    values.set(given);
    ASSERT_EQ(cudaGraphLaunch(launched, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(total.values()[0], rounded(expected));
  }
  cudaGraphExecDestroy(launched);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace tessera::quant
