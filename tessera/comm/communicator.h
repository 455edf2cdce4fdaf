// A communicator performs the collectives of one group of ranks on one lane. All operations are asynchronous and run in
// the order of the calls. Every rank of the group calls the same operations in the same order. Buffers must stay valid
// until the returned fence is done.
//
// Failures. An operation fails if a peer calls another operation, or the same operation with another count or type. An
// operation also fails if a peer does not join within the time limit or has failed. The backend `local` always checks
// that the calls match; the other backends check this if WorldOptions::check_mismatch is true. After a failure the
// fence stores an Error that names the group, the operation, this rank and the peers. The communicator is then broken,
// and every later fence stores the same error.
//
// Memory. Operands are in host memory. A communicator of GPUs also accepts device memory. It copies operands in host
// memory through the device, so such operands should be small.
//
// Sums. The operations all_reduce and reduce_scatter add the ranks' parts in rank order, in the accumulator type of the
// element type. For example, bf16 is summed in fp32 and rounded once. Every backend computes the same bits.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/lanes/fence.h"
#include "tessera/base/lanes/lane.h"
#include "tessera/quant/device_kernels.h"
#include "tessera/quant/dtype.h"

namespace tessera::comm {

enum class ReduceOp { sum, max, min };

// One message of exchange(): `bytes` bytes to or from group rank `peer`. Empty messages are allowed and move nothing.
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
  virtual const std::string& name() const = 0;  // for error messages, e.g. "gtp[0,2]"
  virtual base::Lane& lane() = 0;
  // Returns the kernels for work on the lane. The kernels access memory of the group's device.
  virtual const quant::Kernels& kernels() const { return quant::host_kernels(); }

  // `counts[r]` is the number of elements that rank r sends. `recv` receives all parts densely, in rank order. `send`
  // may be this rank's own part of `recv`.
  virtual base::Fence all_gather(const void* send, void* recv, std::span<const std::int64_t> counts,
                                 quant::DType type) = 0;
  // `send_counts[r]` is the number of elements that this rank sends to rank r. `recv_counts[r]` is the number of
  // elements that this rank receives from rank r. Both buffers are dense, in rank order.
  virtual base::Fence all_to_all(const void* send, std::span<const std::int64_t> send_counts, void* recv,
                                 std::span<const std::int64_t> recv_counts, quant::DType type) = 0;
  // `counts[r]` is the number of elements in rank r's part of `send`. `recv` receives this rank's part, reduced. `recv`
  // may be this rank's own part of `send`.
  virtual base::Fence reduce_scatter(const void* send, void* recv, std::span<const std::int64_t> counts,
                                     quant::DType type, ReduceOp op = ReduceOp::sum) = 0;
  // In place. Every rank receives the same bits.
  virtual base::Fence all_reduce(void* data, std::int64_t count, quant::DType type, ReduceOp op = ReduceOp::sum) = 0;
  virtual base::Fence broadcast(void* data, std::int64_t count, quant::DType type, int root) = 0;
  virtual base::Fence barrier() = 0;
  // Sends and receives a list of messages. The messages of a pair of ranks match in list order. A rank may send to
  // itself. All ranks of the group call exchange(); a rank without messages passes empty lists.
  virtual base::Fence exchange(std::vector<Send> sends, std::vector<Receive> receives) = 0;

  // Registers memory into which many later operations receive. If the backend supports pushes, peers then write to the
  // memory directly (comm/cuda_peer/pushes.h); otherwise share() has no effect. `memory` is a whole base::Buffer of the
  // group's device, or empty. `memory` replaces the memory of the previous call, which may be freed when this call has
  // returned. Collective over the group; waits for the lane and for the peers. Returns the reason if some peer cannot
  // write to the memory. Returns an empty string if all peers can write to the memory, or if the backend needs no
  // shared memory.
  virtual std::string share(std::span<std::byte>) { return {}; }
  // Limits the copies of later pushes: a longer message is sent as several copies of at most `bytes` bytes, which must
  // not be 0. The copy engines can then run copies of other communicators in between. Waits for the lane. Ranks need
  // not have equal limits. There is no limit at first.
  virtual void limit_copies(std::size_t /*bytes*/) {}
  // Launches a graph of this rank on the lane. The graph may contain operations of any groups. The operations were
  // recorded once, while the lanes of the groups were captured, and no operand is in host memory. All ranks launch
  // graphs with the same operations. `expected` is the approximate time that the graph takes. The graph's time limit is
  // that of an operation plus kGraphSlack times `expected`. For operations that run concurrently with the graph, the
  // time limit starts when the graph ends. Throws Error if the communicator has no GPUs.
  static constexpr int kGraphSlack = 4;
  virtual base::Fence launch(std::function<void(base::CudaStream)> graph, std::chrono::milliseconds expected) = 0;

  // Makes pending and later operations of this rank fail at once. The owner calls cancel() when it cannot continue. The
  // destructor also cancels the operations if an exception is propagating.
  virtual void cancel() = 0;
};

// Returns `ranks` equal counts, for all_gather and reduce_scatter.
std::vector<std::int64_t> equal_counts(int ranks, std::int64_t count);

}  // namespace tessera::comm
