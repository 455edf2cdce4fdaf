// One group of ranks on one lane. All operations are asynchronous and run in the order of the calls; every rank of the
// group calls the same operations in the same order. Buffers must stay valid until the returned fence is done.
//
// Failures: a peer that calls another operation, count or type (always checked by `local`, in debug mode by the
// others), a peer that does not come within the time limit, a peer that has failed. The fence then carries an Error
// that names the group, the operation, this rank and the peers; the communicator is broken and every later fence
// carries the same error.
//
// Memory: of the host; a communicator of GPUs takes device memory too, and host memory by way of the device, which is
// for small operands.
//
// Sums are exact in order: all_reduce and reduce_scatter add the ranks' parts in rank order in the accumulator type of
// the element type (bf16 sums in fp32, rounded once), on every backend with the same bits.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/fence.h"
#include "tessera/base/lane.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

enum class ReduceOp { sum, max, min };

// One message of exchange(): `bytes` from or to group rank `peer`. Empty messages are allowed and move nothing.
struct Send {
  int peer = 0;
  const void* data = nullptr;
  std::size_t bytes = 0;
};
struct Receive {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;  // in the group
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;  // "gtp[0,2]": for messages
  virtual base::Lane& lane() = 0;
  // For work on the lane, on memory of the group's device.
  virtual const quant::Kernels& kernels() const { return quant::host_kernels(); }

  // counts[r]: elements that rank r gives; recv holds them in rank order, densely. send may lie in recv at its own
  // place.
  virtual base::Fence all_gather(const void* send, void* recv, std::span<const std::int64_t> counts,
                                 quant::DType type) = 0;
  // send_counts[r], recv_counts[r]: elements to and from rank r, both dense in rank order.
  virtual base::Fence all_to_all(const void* send, std::span<const std::int64_t> send_counts, void* recv,
                                 std::span<const std::int64_t> recv_counts, quant::DType type) = 0;
  // counts[r]: elements of rank r's part of send; recv receives the reduced own part.
  virtual base::Fence reduce_scatter(const void* send, void* recv, std::span<const std::int64_t> counts,
                                     quant::DType type, ReduceOp op = ReduceOp::sum) = 0;
  // In place, every rank the same bits.
  virtual base::Fence all_reduce(void* data, std::int64_t count, quant::DType type, ReduceOp op = ReduceOp::sum) = 0;
  virtual base::Fence broadcast(void* data, std::int64_t count, quant::DType type, int root) = 0;
  virtual base::Fence barrier() = 0;
  // Grouped sends and receives among members. Messages between a pair match in order of the lists. A rank may send to
  // itself. All ranks of the group call it, with empty lists if they have nothing.
  virtual base::Fence exchange(std::vector<Send> sends, std::vector<Receive> receives) = 0;

  // Memory that later operations receive into again and again, a whole base::Buffer of the group's device or empty:
  // where the backend can, peers write to it themselves (comm/cuda_peer/pushes.h), else nothing changes. It takes the
  // place of what was shared before, which may be given back when the call has returned. Collective over the group;
  // waits for the lane and for the peers. Returns why some peer cannot write to it, empty where all can or none needs
  // to.
  virtual std::string share(std::span<std::byte>) { return {}; }
  // Launches a graph of this rank on the lane. It may hold operations of any groups, recorded once while their lanes
  // were captured, none with an operand in host memory. All ranks launch graphs of the same operations. `expected`: how
  // long the graph takes, about. Its time limit is that of an operation plus kGraphSlack times `expected`; operations
  // beside it have theirs from its end on. Errors: no GPUs.
  static constexpr int kGraphSlack = 4;
  virtual base::Fence launch(std::function<void(base::CudaStream)> graph, std::chrono::milliseconds expected) = 0;

  // For an owner that gives up: pending and later operations of this rank fail at once. Its destructor does the same
  // when an exception is the reason for it.
  virtual void cancel() = 0;
};

// Even counts for all_gather and reduce_scatter.
std::vector<std::int64_t> equal_counts(int ranks, std::int64_t count);

}  // namespace tessera::comm
