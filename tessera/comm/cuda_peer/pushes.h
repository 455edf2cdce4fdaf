// Pushes: messages between the GPUs of a host that the sender copies directly into the receiver's memory. The copy
// engines of the sender's GPU make the copies, so its multiprocessors stay free.
//
// The receiver's host sends the target address of every message to the sender's host. A message is pushed if its target
// is in memory that the receiver shares. Both hosts know the target address, so both ranks take the same decision.
//
// On the device, each sender and receiver have two flags: *free* and *arrived*. A flag is a word of 0 or 1 in the
// memory of the rank that waits for the flag. A receiver sets the *free* flag of each sender when the receiver's stream
// has reached the operation. The sender then copies, and sets *arrived* after the copies. A rank that has waited for a
// flag resets the flag, so that a graph can replay the same work.
#pragma once
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/cuda_stream.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/cuda_peer/peer_memory.h"
#include "tessera/comm/messages.h"
#include "tessera/comm/peer_mailbox.h"

struct CUevent_st;

namespace tessera::comm {

class PeerPushes {
 public:
  // Called repeatedly while this rank waits for a peer's host. Pauses briefly, and throws if the wait must end (time
  // limit or failure).
  using WhileWaiting = std::function<void()>;

  // Collective over the group. `stream` is the stream of the group's lane. This stream only sets flags and waits for
  // flags; other streams copy.
  PeerPushes(const GroupIdentity& group, base::Device device, base::CudaStream stream,
             const ExchangeFunction& exchange);
  ~PeerPushes();
  PeerPushes(const PeerPushes&) = delete;
  PeerPushes& operator=(const PeerPushes&) = delete;

  // Collective. No operation may be pending. Shares `memory`, to which peers may write from now on. `memory` replaces
  // the memory of the previous call. Returns the reason if some pair of ranks cannot use pushes, or an empty string if
  // all pairs can.
  std::string share(std::span<std::byte> memory, const ExchangeFunction& exchange);

  // Later operations send a message of more than `bytes` bytes as several copies. A message still has one flag.
  void limit_copies(std::size_t bytes) { longest_copy_ = bytes; }
  static constexpr std::size_t kWholeMessages = std::numeric_limits<std::size_t>::max();

  // Enqueues the messages of an operation that can be pushed, and the copies within this rank's memory. Removes the
  // enqueued messages and copies from `messages`. Every member of the group calls run() with its part of the operation.
  void run(Messages& messages, const WhileWaiting& while_waiting);

  // Ends the device's waits for peers after a failure. Any thread may call this function. Returns when `keep_running`
  // returns false.
  void release(const std::function<bool()>& keep_running);

 private:
  enum class Flag { free, arrived };

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  // The part of one operation that the hosts of the ranks agreed to push.
  struct Agreed {
    std::vector<std::vector<Copy>> copies;  // by receiver: the copies of this rank's pushed messages
    std::vector<bool> receives_from;        // by sender: whether the sender pushes a message to this rank
  };
  Destination target_of(const Receive& receive) const;
  Agreed agree(Messages& messages, const WhileWaiting& while_waiting);
  bool post(const Receive& receive, Agreed& agreed, std::vector<Receive>& others);
  bool take(const Send& send, Agreed& agreed, std::vector<Send>& others);
  void enqueue(const std::vector<std::vector<Copy>>& copies, const std::vector<bool>& receives_from);
  // Enqueues copies to `rank` on the stream that makes all copies to `rank`. The copies start after all work that is on
  // the lane's stream at the call.
  void enqueue_copies(std::size_t rank, const std::vector<Copy>& copies);
  // Returns the address of the flag that `holder` waits for and `setter` sets.
  std::byte* flag(int holder, Flag kind, int setter);

  const GroupIdentity group_;
  const base::Device device_;
  const base::CudaStream stream_;
  base::Buffer flag_buffer_;
  std::unique_ptr<PeerMailbox> own_mailbox_;
  std::vector<std::unique_ptr<PeerMailbox>> mailboxes_;  // by group rank; null: this rank cannot access the mailbox
  std::vector<bool> direct_;  // by group rank: whether this rank and the peer can access each other's mailbox and flags
  std::unique_ptr<PeerMemory> flags_, shared_;
  std::string problem_;
  std::vector<bool> pushes_;  // by group rank: whether messages to and from the peer can be pushed
  std::size_t longest_copy_ = kWholeMessages;
  std::vector<base::CudaStream> streams_;
  std::vector<CUevent_st*> may_begin_, copied_;
};

}  // namespace tessera::comm
