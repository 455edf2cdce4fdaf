// Queues of messages by peer. Each peer's messages keep their order, and a peer that is not ready does not delay the
// messages of other peers.
#pragma once
#include <cstddef>
#include <vector>

namespace tessera::comm {

// `Message` is Send or Receive.
template <typename Message>
class PeerQueues {
 public:
  PeerQueues(const std::vector<Message>& messages, std::size_t peers) : queues_(peers), next_(peers) {
    for (const Message& message : messages) queues_[static_cast<std::size_t>(message.peer)].push_back(message);
  }

  // Moves the messages of peers for which keep(peer) is false to `others`.
  template <typename Keep>
  void move_out(Keep keep, std::vector<Message>& others) {
    for (std::size_t peer = 0; peer < queues_.size(); ++peer) {
      if (keep(static_cast<int>(peer))) continue;
      others.insert(others.end(), queues_[peer].begin(), queues_[peer].end());
      queues_[peer].clear();
    }
  }
  bool empty() const {
    for (std::size_t peer = 0; peer < queues_.size(); ++peer)
      if (next_[peer] < queues_[peer].size()) return false;
    return true;
  }
  // For each peer, calls handle(message) for the next messages until `handle` returns false. Returns whether a message
  // was handled.
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

// Alternates between posting receives and taking sends until all messages are done. `post` and `take` return false if
// the peer is not ready. Alternating is necessary: two ranks that only post fill each other's mailboxes and then wait
// forever. Calls `while_waiting` when no message was handled.
template <typename Receive, typename Send, typename Post, typename Take, typename WhileWaiting>
void exchange_alternately(PeerQueues<Receive>& receives, PeerQueues<Send>& sends, Post post, Take take,
                          const WhileWaiting& while_waiting) {
  while (!receives.empty() || !sends.empty()) {
    const bool posted = receives.advance(post), taken = sends.advance(take);
    if (!posted && !taken) while_waiting();
  }
}

}  // namespace tessera::comm
