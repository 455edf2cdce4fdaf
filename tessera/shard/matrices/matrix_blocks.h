// The matrices of a parameter. A parameter may stack several matrices by rows: q, k and v, or gate and up, or the
// matrices of experts. An update rule that computes with whole matrices treats each of them alone. Pure.
#pragma once
#include <string>
#include <vector>

#include "tessera/layout/box.h"
#include "tessera/shard/parameter.h"

namespace tessera::shard {

struct MatrixBlock {
  std::string name;  // "q"; "gate of 3" for the matrix 3 of a stack; empty if the parameter is one matrix
  layout::Box box;   // all columns of some rows of the logical matrix
};

// Returns whether the parameter consists of matrices whose rows are not read by index.
bool has_matrices(const ParameterSpec& spec);
// Returns the matrices of the parameter in the order of their rows. Empty matrices are left out. Throws Error if the
// parameter is a vector, and if spec.blocks do not cover the rows of a matrix exactly.
std::vector<MatrixBlock> matrix_blocks(const ParameterSpec& spec);

}  // namespace tessera::shard
