#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "tessera/base/device_guard.h"
#include "tessera/base/error.h"
#include "tessera/ops/device/graph.h"

namespace tessera::ops {

struct Graph::Recorded {
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};  // libtorch's memory is its business, the launches are ours
  cudaGraphExec_t launched = nullptr;

  ~Recorded() {
    if (launched != nullptr) cudaGraphExecDestroy(launched);
  }
};

Graph::Graph(base::Device device) : device_(device), recorded_(std::make_unique<Recorded>()) {}
Graph::~Graph() = default;

void Graph::begin(base::CudaStream stream) {
  TESSERA_CHECK(c10::cuda::getCurrentCUDAStream().stream() == stream, "a graph begins on another stream");
  at::globalContext().lazyInitDevice(at::kCUDA);  // its random numbers take part in every capture
  c10::cuda::CUDACachingAllocator::emptyCache();
  // Other threads, of libtorch's backward and of NCCL, put work on the stream too; what the host asks of events stays
  // allowed.
  recorded_->graph.capture_begin({0, 0}, cudaStreamCaptureModeRelaxed);
}

void Graph::end() {
  recorded_->graph.capture_end();
  // Copies and collectives keep the priority of their streams.
  TESSERA_CUDA_CHECK(cudaGraphInstantiateWithFlags(&recorded_->launched, recorded_->graph.raw_cuda_graph(),
                                                   cudaGraphInstantiateFlagUseNodePriority));
}

void Graph::launch(base::CudaStream stream) {
  const base::DeviceGuard guard(device_);
  TESSERA_CUDA_CHECK(cudaGraphLaunch(recorded_->launched, stream));
}

}  // namespace tessera::ops
