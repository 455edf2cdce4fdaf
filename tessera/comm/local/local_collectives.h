// The collectives between ranks that are threads: each member copies data directly from the buffers of its peers.
#pragma once
#include "tessera/base/memory/buffer.h"
#include "tessera/comm/local/group.h"

namespace tessera::comm {

// One member's side of an operation that all members have joined. `scratch` grows as needed and is kept between
// operations.
struct LocalCall {
  MatchedOperation& matched;
  const Operation& own;
  const GroupIdentity& group;
  base::Buffer& scratch;
};

// Executes the operation. Returns when this member has read all data that it needs from its peers. The peers may still
// read the buffers of this member.
void execute(const LocalCall& call);

// Executes the operation for all members and returns true, if the members together receive at most `small` bytes and
// their calls match. Otherwise it changes nothing and returns false. `call` belongs to any member. The other members
// wait meanwhile. The results have the bits of execute().
bool execute_together(const LocalCall& call, std::int64_t small);

}  // namespace tessera::comm
