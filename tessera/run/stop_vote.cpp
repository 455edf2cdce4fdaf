#include "tessera/run/stop_vote.h"

namespace tessera::run {

bool StopVote::any(bool asked, comm::Communicator& world) {
  votes_ = asked ? 1 : 0;
  world.all_reduce(&votes_, 1, quant::DType::fp64).synchronize();
  return votes_ > 0;
}

}  // namespace tessera::run
