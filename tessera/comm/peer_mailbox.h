// Where the ranks of one host tell each other where their messages go: memory of a receiver that its senders map too.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::comm {

// Of a message that somebody is about to send here.
struct Destination {
  static constexpr std::int64_t kNowhere = -1;  // not in memory that the sender may write
  std::int64_t offset = kNowhere;               // in the receiver's shared memory
  std::int64_t bytes = 0;
};

// A queue of destinations from the receiver to each sender. One thread of the receiver posts, one of each sender takes.
class PeerMailbox {
 public:
  static constexpr std::size_t kPending = 1024;  // destinations of a sender that it has not taken

  // The receiver's. `prefix` begins the name under which the host's processes find it. Errors: no shared memory
  // (Error).
  static std::unique_ptr<PeerMailbox> create(const std::string& prefix, int senders);
  // A sender's. Errors: no such mailbox, one for another number of senders (Error).
  static std::unique_ptr<PeerMailbox> open(const std::string& name, int senders);
  ~PeerMailbox();
  PeerMailbox(const PeerMailbox&) = delete;
  PeerMailbox& operator=(const PeerMailbox&) = delete;

  const std::string& name() const { return name_; }
  // Nobody opens it any more; it goes with the last who has it.
  void unlink();

  // False while kPending are not taken.
  bool try_post(int sender, const Destination& destination);
  // Nothing while nothing is posted.
  std::optional<Destination> try_take(int sender);

 private:
  struct Queue;
  struct Contents;
  PeerMailbox(std::string name, Contents* contents, std::size_t bytes, bool owned);
  Queue& queue(int sender);

  const std::string name_;
  Contents* const contents_;
  const std::size_t bytes_;
  bool linked_;
};

}  // namespace tessera::comm
