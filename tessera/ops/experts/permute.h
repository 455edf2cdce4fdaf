// Moves values between the tokens of a group and the rows of the local experts. The accumulator type is fp32, or fp64
// in fp64 runs. The dimension `tokens` counts the tokens of the group.
#pragma once
#include "tessera/ops/router/selection.h"

namespace tessera::ops {

// x: [tokens, width]. Returns the row of each selected token: [room, width].
at::Tensor take_rows(const at::Tensor& x, const Selection& selection);
// rows: [room, width]. Returns [tokens, width]: the sum of each token's rows. The sum starts from +0 and adds the rows
// by ascending expert in the accumulator type. The sum is rounded once. A token without a row gets +0.
at::Tensor combine_rows(const at::Tensor& rows, const Selection& selection);

// values: [tokens, k], one for each choice. Returns [room].
at::Tensor take_choices(const at::Tensor& values, const Selection& selection);
// values: [room]. Returns [tokens, k] with zeros for choices without a row.
at::Tensor put_choices(const at::Tensor& values, const Selection& selection);

}  // namespace tessera::ops
