// The collectives of rank threads: every member takes what it needs straight from its peers' buffers.
#pragma once
#include "tessera/base/buffer.h"
#include "tessera/comm/local/group.h"

namespace tessera::comm {

// One member's side of an operation whose members have all come. `scratch` grows as needed and is kept between
// operations.
struct LocalCall {
  MatchedOperation& matched;
  const Operation& own;
  const GroupIdentity& group;
  base::Buffer& scratch;
};

// Returns when this member needs nothing more from its peers; they may still be reading this member's buffers.
void carry_out(const LocalCall& call);

}  // namespace tessera::comm
