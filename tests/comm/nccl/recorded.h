// A CUDA graph of the work of one lane.
#pragma once
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "tessera/base/lanes/capture.h"
#include "tessera/base/lanes/lane.h"

namespace tessera::comm {

class Recorded {
 public:
  // Records the work that `work` enqueues on the lane, which must be the lane of a GPU.
  Recorded(base::Lane& lane, const std::function<void()>& work) : lane_(lane) {
    EXPECT_EQ(cudaStreamBeginCapture(lane.stream(), cudaStreamCaptureModeRelaxed), cudaSuccess);
    lane.capture(std::make_shared<base::Capture>());
    work();
    lane.capture(nullptr);
    EXPECT_EQ(cudaStreamEndCapture(lane.stream(), &graph_), cudaSuccess);
    expect_no_allocation();
    EXPECT_EQ(cudaGraphInstantiate(&launched_, graph_, 0), cudaSuccess);
  }
  // All launches of the graph must have finished.
  ~Recorded() {
    cudaGraphExecDestroy(launched_);
    cudaGraphDestroy(graph_);
  }
  Recorded(const Recorded&) = delete;
  Recorded& operator=(const Recorded&) = delete;

  void launch() { ASSERT_EQ(cudaGraphLaunch(launched_, lane_.stream()), cudaSuccess); }

 private:
  // Expects that no node of the graph allocates memory, because CUDA does not count such memory as used device memory.
  void expect_no_allocation() const {
    std::size_t count = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph_, nullptr, &count), cudaSuccess);
    std::vector<cudaGraphNode_t> nodes(count);
    EXPECT_EQ(cudaGraphGetNodes(graph_, nodes.data(), &count), cudaSuccess);
    for (cudaGraphNode_t node : nodes) {
      cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
      // The runtime does not report the type of driver nodes, such as the flags of pushes.
      if (cudaGraphNodeGetType(node, &type) != cudaSuccess) (void)cudaGetLastError();
      EXPECT_NE(type, cudaGraphNodeTypeMemAlloc);
    }
  }

  base::Lane& lane_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t launched_ = nullptr;
};

}  // namespace tessera::comm
