#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include "tessera/base/device_guard.h"
#include "tessera/base/error.h"
#include "tessera/ops/device/graph.h"

namespace tessera::ops {

struct Graph::Recorded {
  at::cuda::CUDAGraph graph{/*keep_graph=*/true};  // libtorch manages the memory; this class launches
  cudaGraphExec_t launched = nullptr;

  ~Recorded() {
    if (launched != nullptr) cudaGraphExecDestroy(launched);
  }
};

Graph::Graph(base::Device device) : device_(device), recorded_(std::make_unique<Recorded>()) {}
Graph::~Graph() = default;

void Graph::begin(base::CudaStream stream) {
  TESSERA_CHECK(c10::cuda::getCurrentCUDAStream().stream() == stream,
                "graph: expected to record on libtorch's current stream, got another stream");
  at::globalContext().lazyInitDevice(at::kCUDA);  // libtorch's random number generators take part in every capture
  c10::cuda::CUDACachingAllocator::emptyCache();
  // Relaxed mode, because threads of libtorch's backward and of NCCL also enqueue on the stream, and the host may query
  // events.
  recorded_->graph.capture_begin({0, 0}, cudaStreamCaptureModeRelaxed);
}

void Graph::end() {
  recorded_->graph.capture_end();
  // The nodes of copies and collectives keep the priority of their streams.
  TESSERA_CUDA_CHECK(cudaGraphInstantiateWithFlags(&recorded_->launched, recorded_->graph.raw_cuda_graph(),
                                                   cudaGraphInstantiateFlagUseNodePriority));
}

void Graph::launch(base::CudaStream stream) {
  const base::DeviceGuard guard(device_);
  TESSERA_CUDA_CHECK(cudaGraphLaunch(recorded_->launched, stream));
}

}  // namespace tessera::ops
