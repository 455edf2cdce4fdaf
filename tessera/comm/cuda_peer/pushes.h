// Messages between the GPUs of a host as copies into the receiver's memory by the sender's copy engines, which leave
// the multiprocessors alone.
//
// A message goes this way when the receiver has said that its target lies in memory which it shares; both know, since
// the receiver's host tells the sender's host every target. On the device each pair of ranks has two flags, words of 0
// or 1 in the memory of the one who waits: a receiver sets its senders' *free* when its stream has come to the
// operation, a sender then copies and sets *arrived* behind the copies. Whoever has waited for a flag sets it back, so
// the same work can be replayed from a graph.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/base/cuda_stream.h"
#include "tessera/comm/communicator.h"
#include "tessera/comm/cuda_peer/peer_memory.h"
#include "tessera/comm/messages.h"
#include "tessera/comm/peer_mailbox.h"

struct CUevent_st;

namespace tessera::comm {

class PeerPushes {
 public:
  // Called while a peer's host is waited for: rests, and throws what ends the wait (a time limit, a failure).
  using Patience = std::function<void()>;

  // Collective over the group. `stream`: of the group's lane, which waits and sets flags and copies nothing itself.
  PeerPushes(const GroupIdentity& group, base::Device device, base::CudaStream stream,
             const ExchangeFunction& exchange);
  ~PeerPushes();
  PeerPushes(const PeerPushes&) = delete;
  PeerPushes& operator=(const PeerPushes&) = delete;

  // Collective, with nothing under way. What peers may write to from now on, instead of what was shared before.
  // Returns why some pair cannot, empty where all can.
  std::string share(std::span<std::byte> memory, const ExchangeFunction& exchange);

  // Enqueues what of an operation can go this way, copies within this rank's memory included, and takes it from
  // `messages`. Every member of the group calls it with its part of one operation.
  void run(Messages& messages, const Patience& patience);

  // After a failure: the device does not wait for peers any more. Any thread; for as long as `goes_on` says.
  void release(const std::function<bool()>& goes_on);

 private:
  enum class Flag { free, arrived };

  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  // What the hosts have told each other of one operation.
  struct Agreed {
    std::vector<std::vector<Copy>> copies;  // of this rank's messages, by receiver
    std::vector<bool> comes_from;           // by sender: whether a message comes this way
  };
  Destination target_of(const Receive& receive) const;
  Agreed agree(Messages& messages, const Patience& patience);
  bool post(const Receive& receive, Agreed& agreed, std::vector<Receive>& others);
  bool take(const Send& send, Agreed& agreed, std::vector<Send>& others);
  void enqueue(const std::vector<std::vector<Copy>>& copies, const std::vector<bool>& comes_from);
  // On the rank's stream, after what the lane's stream has come to.
  void enqueue_copies(std::size_t rank, const std::vector<Copy>& copies);
  // The flag of memory that `holder` waits for, set by `setter`.
  std::byte* flag(int holder, Flag kind, int setter);

  const GroupIdentity group_;
  const base::Device device_;
  const base::CudaStream stream_;
  base::Buffer flag_buffer_;
  std::unique_ptr<PeerMailbox> own_mailbox_;
  std::vector<std::unique_ptr<PeerMailbox>> mailboxes_;  // by group rank; null where out of reach
  std::vector<bool> near_;                               // mailbox and flags are in reach, both ways
  std::unique_ptr<PeerMemory> flags_, shared_;
  std::string problem_;
  std::vector<bool> pushes_;  // by group rank: messages go this way, both ways
  std::vector<base::CudaStream> streams_;
  std::vector<CUevent_st*> may_begin_, copied_;
};

}  // namespace tessera::comm
