// Work of a stream that is recorded once and launched again and again: a CUDA graph, with libtorch's memory of its own.
#pragma once
#include <memory>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/device.h"

namespace tessera::ops {

// Tensors made between begin and end lie in memory that belongs to the graph until it is destroyed, and hold what the
// last launch put there. One thread. Errors: built without CUDA; what cannot be recorded.
class Graph {
 public:
  explicit Graph(base::Device device);
  ~Graph();  // once no launch is under way
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // What is put on `stream`, libtorch's current one, from now on, and on streams that wait for events of it, is
  // recorded and not carried out. Gives libtorch's unused memory back first.
  void begin(base::CudaStream stream);
  // Every stream that took part has been waited for.
  void end();
  void launch(base::CudaStream stream);

 private:
  struct Recorded;
  base::Device device_;
  std::unique_ptr<Recorded> recorded_;
};

}  // namespace tessera::ops
