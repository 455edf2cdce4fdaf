// Checks the transfers in pieces of a trace (events.h). For every duration of the pieces, compute must read the tokens
// of the right transfer. The rules:
//
// - Each piece is begun once and then needed once, in the same microbatch. The pieces of a transfer are begun in order.
// - A piece of a scatter is begun after the consume event of the weight whose product writes its rows.
// - A scatter is added once, after the need events of all its pieces. The sum has the order of the ranks.
// - A gather begins when every earlier scatter of its group is added, because its tokens are computed from these sums.
// - A gather is needed before the end of the product that reads it: before the next release event of the weight in this
//   pass, or before its next produce event (kWgradGather).
// - From its first piece to its last reader, no other transfer receives tokens into its range of the transfer arena.
//   The last reader is the sum of a scatter, or the release event of the weight of a gather. In a backward pass it is
//   the produce event of this weight, because the product of the weight's gradient may read the tokens too.
//
// Transfers without a parameter are checked only with the rules that need none.
#pragma once
#include "tessera/schedule/check/faults.h"

namespace tessera::schedule {

void check_pieces(const Trace& trace, CheckFaults& faults);

}  // namespace tessera::schedule
