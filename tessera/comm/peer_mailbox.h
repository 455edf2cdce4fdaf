// A receiver on a host tells senders on the same host where to write their messages. A mailbox is memory of the
// receiver that the senders also map.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::comm {

// The destination of a message that a sender is about to send.
struct Destination {
  static constexpr std::int64_t kNowhere = -1;  // the destination is not in memory that the sender can write
  std::int64_t offset = kNowhere;               // bytes from the start of the receiver's shared memory
  std::int64_t bytes = 0;
};

// Queues of destinations, one from the receiver to each sender. One thread of the receiver posts, and one thread of
// each sender takes.
class PeerMailbox {
 public:
  static constexpr std::size_t kPending = 1024;  // maximum number of destinations that a sender has not taken yet

  // Makes a mailbox; called by the receiver. The mailbox's name starts with `prefix`. Processes on the host open the
  // mailbox by this name. Throws Error if shared memory cannot be allocated.
  static std::unique_ptr<PeerMailbox> create(const std::string& prefix, int senders);
  // Opens a mailbox; called by a sender. Throws Error if no mailbox has this name, or if the mailbox has another number
  // of senders.
  static std::unique_ptr<PeerMailbox> open(const std::string& name, int senders);
  ~PeerMailbox();
  PeerMailbox(const PeerMailbox&) = delete;
  PeerMailbox& operator=(const PeerMailbox&) = delete;

  const std::string& name() const { return name_; }
  // Removes the name, so that the mailbox can no longer be opened. The memory is freed when the last process unmaps the
  // memory.
  void unlink();

  // Posts a destination for `sender`. Returns false if the sender has not taken kPending earlier destinations yet.
  bool try_post(int sender, const Destination& destination);
  // Takes the next destination for `sender`. Returns nullopt if no destination is posted.
  std::optional<Destination> try_take(int sender);

 private:
  struct Queue;
  struct Contents;
  static std::size_t bytes_for(int senders);
  PeerMailbox(std::string name, Contents* contents, int senders, bool owned);
  Queue& queue(int sender);

  const std::string name_;
  Contents* const contents_;
  const int senders_;
  bool linked_;
};

}  // namespace tessera::comm
