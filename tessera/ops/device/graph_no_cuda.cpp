#include "tessera/base/error.h"
#include "tessera/ops/device/graph.h"

namespace tessera::ops {

struct Graph::Recorded {};

Graph::Graph(base::Device device) : device_(device) {
  throw Error("a graph on {}: expected a GPU and a build with CUDA", name_of(device_));
}
Graph::~Graph() = default;
void Graph::begin(base::CudaStream /*stream*/) {}
void Graph::end() {}
void Graph::launch(base::CudaStream /*stream*/) {}

}  // namespace tessera::ops
