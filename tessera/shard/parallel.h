// The groups of a run that a model and its runtime talk over, as one rank holds them.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "tessera/comm/world.h"
#include "tessera/mesh/mesh.h"
#include "tessera/quant/device_kernels.h"

namespace tessera::shard {

struct Parallel {
  mesh::Mesh mesh;                                 // dense axes: tp, gtp, dp
  int rank = 0;                                    // in the world
  base::Device device;                             // where weights and gradients lie
  std::unique_ptr<base::Lane> compute;             // the program itself
  std::unique_ptr<base::Lane> sums;                // of arrived gradients; null: on the lane of gtp_reduce
  std::unique_ptr<comm::Communicator> tp;          // the program's own collectives
  std::unique_ptr<comm::Communicator> gtp_gather;  // scheduled weights travel here ...
  std::unique_ptr<comm::Communicator> gtp_reduce;  // ... gradients here: neither waits for the other
  std::unique_ptr<comm::Communicator> gtp_demand;  // weights that no schedule foresaw
  std::unique_ptr<comm::Communicator> gtp_rows;    // rows of tables that the program reads by index
  std::unique_ptr<comm::Communicator> tp_gather;   // the second hop of weights whose compute parts overlap
  std::unique_ptr<comm::Communicator> tp_reduce;   // the first hop of gradients that tp ranks hold in parts
  std::unique_ptr<comm::Communicator> dp;
  std::unique_ptr<comm::Communicator> data;  // gtp x dp: all ranks that read different samples
  std::unique_ptr<comm::Communicator> norm;  // all ranks: the gradient's norm; graphs are launched on its lane
  std::unique_ptr<comm::Communicator> world;
  std::unique_ptr<comm::Communicator> casts;  // all ranks: amaxes of whole weights; null where no format asks for them
  std::unique_ptr<meet::Board> board;         // what each rank last did, for whoever waits too long
  std::shared_ptr<base::VirtualClock> clock;  // null where time is real

  // All of them, in the order of their making.
  std::vector<comm::Communicator*> groups() const;

  // Those of scheduled gathers, over gtp and over tp.
  std::array<base::Lane*, 2> gather_lanes() const { return {&gtp_gather->lane(), &tp_gather->lane()}; }
  // Those that work for the next step before a graph of this one has ended: the same, and that of rows.
  std::array<base::Lane*, 3> lanes_ahead() const {
    return {&gtp_gather->lane(), &tp_gather->lane(), &gtp_rows->lane()};
  }
  // Every lane but compute's.
  std::vector<base::Lane*> lanes() const;
  // Pending and later operations of this rank fail at once.
  void cancel() const;
  // Blocks until those lanes have come to the end of what they hold, failed or not: nothing uses its memory then.
  void drain() const;

  std::unique_ptr<quant::Kernels> own_kernels, own_sum_kernels;  // on compute and sums; null: the host's
  const quant::Kernels& kernels() const { return own_kernels ? *own_kernels : quant::host_kernels(); }
  const quant::Kernels& sum_kernels() const { return own_sum_kernels ? *own_sum_kernels : quant::host_kernels(); }
  // Whether compute is a queue that the host fills and does not wait for.
  bool is_asynchronous() const { return compute->stream() != nullptr; }

  int tp_rank() const { return mesh.coordinate(rank, "tp"); }
  int gtp_rank() const { return mesh.coordinate(rank, "gtp"); }
  int dp_rank() const { return mesh.coordinate(rank, "dp"); }
  int tp_size() const { return mesh.size("tp"); }
  int gtp_size() const { return mesh.size("gtp"); }
  int dp_size() const { return mesh.size("dp"); }
};

// Collective over the world, which outlives the result: every rank makes every group in the same order; `casts` only if
// it is asked for. Errors
// (InputError): tp * gtp * dp is not the world's size.
Parallel make_parallel(comm::World& world, int tp, int gtp, int dp, bool with_casts = false);

}  // namespace tessera::shard
