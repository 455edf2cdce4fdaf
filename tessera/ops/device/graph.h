// A CUDA graph: work of a stream that is recorded once and launched many times. The graph has its own libtorch memory.
#pragma once
#include <memory>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"

namespace tessera::ops {

// Tensors that are made between begin and end use memory that belongs to the graph until it is destroyed. After a
// launch these tensors hold the values of that launch. Used by one thread. Throws Error in a build without CUDA, and
// for work that cannot be recorded.
class Graph {
 public:
  explicit Graph(base::Device device);
  ~Graph();  // no launch may be in flight
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Starts recording. Work on `stream`, which is libtorch's current stream, and on streams that wait for its events is
  // recorded and not run. First returns libtorch's unused memory.
  void begin(base::CudaStream stream);
  // Ends recording. `stream` must have waited for every other stream that was used.
  void end();
  void launch(base::CudaStream stream);

 private:
  struct Recorded;
  base::Device device_;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace tessera::ops
