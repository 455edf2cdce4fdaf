// Detects that the process of another rank has ended, while the ranks of a run wait for each other, and tells rank 0
// what each rank does.
#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::rendezvous {

// Every rank has a TCP connection to rank 0. The kernel closes the connection when the process ends, also after
// SIGKILL. A host that does not answer for about half a minute is treated as ended. The watch only helps the user: a
// rank whose connection cannot be made is not watched, and no rank is watched if there are more than kMaxWatched ranks.
// Rank 0 listens on a free port until all ranks have connected (newcomers.h).
//
// Rank 0 reports when other ranks end, and rank 1 reports when rank 0 ends. A thread of the object calls the functions
// of Options below `share`. Every rank sends its lines to rank 0,
// and rank 0 sends its lines to all ranks. A rank whose process is stopped sends no lines.
class PeerWatch {
 public:
  static constexpr int kMaxWatched = 512;  // limits the number of sockets that rank 0 opens

  struct Options {
    int rank = 0, ranks = 1;
    std::chrono::milliseconds connecting{10'000};  // time limit of a rank above 0 to connect to rank 0
    bool is_one_host = false;  // whether all ranks have the same network_identity(); rank 0 then listens on loopback
    // Collective. Sends the text of rank 0, which has at most kLongestAddress bytes, to all ranks and returns the text.
    std::function<std::string(std::string)> share;
    // Called at most once, with the ranks that ended without a call of leave(), in ascending order. Ranks that end
    // within a short time are reported together.
    std::function<void(const std::vector<int>&)> lost;
    // Returns whether the user asked the run to stop. Ranks that end long after such a request are not reported.
    std::function<bool()> stop_requested;
    // The three functions below may be empty. `line` is called about 10 times a second. It returns a line that this
    // rank sends, without '\n' and with at most kLongestLine bytes, or an empty text.
    std::function<std::string()> line = {};
    std::function<void(int rank, const std::string& line)> received = {};  // called with the line of another rank
    std::function<void()> tick = {};                                       // called about 10 times a second
  };
  static constexpr std::size_t kLongestAddress = 1023, kLongestLine = 65536;

  // Collective. Connects the ranks, which takes at most a few seconds, or `connecting` if other programs disturb rank
  // 0.
  explicit PeerWatch(Options options);
  // Ends the watch. If leave() was not called, the other ranks treat this rank as lost.
  ~PeerWatch();
  PeerWatch(const PeerWatch&) = delete;
  PeerWatch& operator=(const PeerWatch&) = delete;

  // Tells the other ranks that the end of this rank is not a loss, and ends the watch. Waits until a running call of
  // `lost` returns.
  void leave();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::rendezvous
