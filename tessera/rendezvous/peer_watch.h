// Detects that the process of another rank has ended, while the ranks of a run wait for each other.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::rendezvous {

// Every rank has a TCP connection to rank 0. The kernel closes it when the process ends, also after SIGKILL. A host
// that does not answer for about half a minute counts as ended. The watch is only a help for the user: if a connection
// cannot be made, the rank is not watched. No rank is watched if there are more than kMaxWatched ranks.
//
// Rank 0 reports the other ranks, and rank 1 reports rank 0. One thread of the object on ranks 0 and 1 calls `lost`.
class PeerWatch {
 public:
  static constexpr int kMaxWatched = 512;  // rank 0 has an open file for each rank

  struct Options {
    int rank = 0, ranks = 1;
    // Collective: passes rank 0's text of at most kLongestAddress bytes to all ranks, and returns it.
    std::function<std::string(std::string)> share;
    // Called at most once, with ranks that have ended without leave(), ascending. Several ranks that end within a
    // short time are reported together.
    std::function<void(const std::vector<int>&)> lost;
    // Returns whether the run was asked to stop. Ranks that end well after such a request are not reported.
    std::function<bool()> stop_requested;
  };
  static constexpr std::size_t kLongestAddress = 255;

  // Collective. Connects the ranks; takes a few seconds at most.
  explicit PeerWatch(Options options);
  // Ends the watch. Without leave(), the other ranks count this rank as lost.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Tells the others that the end of this rank is not a loss, and ends the watch. Waits for a report in progress.
  void leave();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::rendezvous
