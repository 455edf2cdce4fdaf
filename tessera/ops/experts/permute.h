// Moves values between the tokens of a group and the rows of the local experts. "Accumulator type" is fp32, or fp64 in
// fp64 runs. "tokens" are the tokens of the group.
#pragma once
#include "tessera/ops/experts/selection.h"

namespace tessera::ops {

// x: [tokens, width]. Returns the row of each selected token: [room, width].
at::Tensor take_rows(const at::Tensor& x, const Selection& selection);
// rows: [room, width]. Returns [tokens, width]: for each token the sum of its rows, added in the accumulator type by
// ascending expert, starting from +0, and rounded once. A token without a row gets +0.
at::Tensor combine_rows(const at::Tensor& rows, const Selection& selection);

// values: [tokens, k], one for each choice. Returns [room].
at::Tensor take_choices(const at::Tensor& values, const Selection& selection);
// values: [room]. Returns [tokens, k] with zeros for choices without a row.
at::Tensor put_choices(const at::Tensor& values, const Selection& selection);

}  // namespace tessera::ops
