// The first messages between rank 0 of a run and the ranks that connect to it. Other programs can also reach
// this port.
#pragma once
#include <poll.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/process/running_clock.h"
#include "tessera/rendezvous/connecting.h"
#include "tessera/rendezvous/socket.h"

namespace tessera::rendezvous {

// Two texts that all ranks of a run know and other programs do not. A rank that connects sends `hello` and its rank.
// Rank 0 answers with `welcome`, so that the rank does not mistake another program for rank 0.
struct Handshake {
  std::string hello, welcome;  // identities that draw_identity() returns
};

struct NewcomerLimits {
  std::chrono::milliseconds identify{5000};     // time from the connection to the complete hello
  std::chrono::milliseconds open{kConnecting};  // time in which ranks can connect
};

// Accepts one connection from each rank above 0. At most as many connections without a complete hello are open as ranks
// are missing; a new one replaces the oldest. When all ranks have connected, or after limits.open, the port is closed.
// For one thread. No function waits.
class Newcomers {
 public:
  // `listener` listens and does not block.
  Newcomers(Socket listener, Handshake handshake, int ranks, const NewcomerLimits& limits = {});

  bool is_open() const { return static_cast<bool>(listener_); }
  // Appends the files to poll for input. If the process has no descriptor left, the listener is omitted for a moment,
  // so that the caller's loop does not spin.
  void add_files(std::vector<pollfd>& files) const;
  // Reads what has arrived, and returns the connections of ranks that are identified now.
  std::vector<std::pair<int, Socket>> serve();

 private:
  using Clock = base::RunningClock;
  struct Pending {
    Socket socket;
    Clock::time_point end;
    std::string received;
  };
  enum class Outcome { waits, refused, identified };

  void accept_all(std::vector<std::pair<int, Socket>>& identified);
  Outcome read(Pending& pending, std::vector<std::pair<int, Socket>>& identified);
  bool is_missing(int rank) const;

  Socket listener_;
  const Handshake handshake_;
  const NewcomerLimits limits_;
  std::vector<bool> connected_;  // by rank
  int missing_;
  const Clock::time_point end_;
  Clock::time_point pause_end_;
  std::vector<Pending> pending_;  // the oldest first
};

// The port on which rank 0 accepts the other ranks.
struct Rank0Port {
  std::string host;
  int port = 0;
  Handshake handshake;
};
// Connects to rank 0 and exchanges the first messages. Tries again if the connection is lost or takes long. Returns an
// empty socket if the port is closed, or if rank 0 has not answered after `limit`.
Socket connect_to_rank_0(const Rank0Port& port, int rank, std::chrono::milliseconds limit);

}  // namespace tessera::rendezvous
