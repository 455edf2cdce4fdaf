// A CUDA graph: work of a stream that is recorded once and launched many times. The graph owns the memory of the
// tensors that the work uses.
#pragma once
#include <memory>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"

namespace tessera::ops {

// Tensors that are created between begin and end use memory that belongs to the graph until the graph is destroyed.
// After a launch these tensors hold the values of that launch. Used by one thread. Throws Error in a build without
// CUDA, and for work that cannot be recorded.
class Graph {
 public:
  explicit Graph(base::Device device);
  ~Graph();  // no launch may be in flight
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Returns libtorch's unused memory to the driver and starts recording. `stream` is libtorch's current stream. Work on
  // `stream`, and on streams that wait for events of `stream`, is recorded and does not run.
  void begin(base::CudaStream stream);
  // Ends recording. `stream` must have waited for every other stream with recorded work.
  void end();
  void launch(base::CudaStream stream);

 private:
  struct Recorded;
  base::Device device_;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace tessera::ops
