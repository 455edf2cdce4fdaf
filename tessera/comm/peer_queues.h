// Messages by peer, in the order of each peer, so that a peer that is not ready holds up no other one.
#pragma once
#include <cstddef>
#include <vector>

namespace tessera::comm {

// Message: Send or Receive.
template <typename Message>
class PeerQueues {
 public:
  PeerQueues(const std::vector<Message>& messages, std::size_t peers) : queues_(peers), next_(peers) {
    for (const Message& message : messages) queues_[static_cast<std::size_t>(message.peer)].push_back(message);
  }

  // Moves the messages of peers for which stays(peer) is false to `others`.
  template <typename Stays>
  void move_out(Stays stays, std::vector<Message>& others) {
    for (std::size_t peer = 0; peer < queues_.size(); ++peer) {
      if (stays(static_cast<int>(peer))) continue;
      others.insert(others.end(), queues_[peer].begin(), queues_[peer].end());
      queues_[peer].clear();
    }
  }
  bool empty() const {
    for (std::size_t peer = 0; peer < queues_.size(); ++peer)
      if (next_[peer] < queues_[peer].size()) return false;
    return true;
  }
  // Hands each peer's next messages to handle(message) until it returns false. Returns whether one was handled.
  template <typename Handle>
  bool advance(Handle handle) {
    bool any = false;
    for (std::size_t peer = 0; peer < queues_.size(); ++peer)
      for (; next_[peer] < queues_[peer].size() && handle(queues_[peer][next_[peer]]); ++next_[peer]) any = true;
    return any;
  }

 private:
  std::vector<std::vector<Message>> queues_;
  std::vector<std::size_t> next_;
};

// Posts receives and takes sends by turns until all are done; post and take return false where a peer is not ready.
// It must alternate: two ranks that only post fill each other's mailboxes and then wait forever. patience: called when
// no message moved.
template <typename Receive, typename Send, typename Post, typename Take, typename Patience>
void in_turns(PeerQueues<Receive>& receives, PeerQueues<Send>& sends, Post post, Take take, const Patience& patience) {
  while (!receives.empty() || !sends.empty()) {
    const bool posted = receives.advance(post), taken = sends.advance(take);
    if (!posted && !taken) patience();
  }
}

}  // namespace tessera::comm
