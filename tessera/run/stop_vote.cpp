#include "tessera/run/stop_vote.h"

namespace tessera::run {

bool StopVote::any(bool stop_requested, comm::Communicator& world) {
  votes_ = stop_requested ? 1 : 0;
  world.all_reduce(&votes_, 1, quant::DType::fp64).synchronize();
  return votes_ > 0;
}

}  // namespace tessera::run
