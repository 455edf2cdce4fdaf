#include "tessera/base/error.h"
#include "tessera/ops/initialise/normal_stream.h"

namespace tessera::ops {

void check_fill(const NormalFill& fill) {
  TESSERA_CHECK(fill.rows >= 0 && fill.cols >= 0 && fill.row >= 0 && fill.col >= 0,
                "initial values of {}: rows {}, cols {} from ({}, {}): expected 0 or more", fill.name, fill.rows,
                fill.cols, fill.row, fill.col);
  TESSERA_CHECK(fill.rows == 0 || fill.cols == 0 || fill.col + fill.cols <= fill.logical_cols,
                "initial values of {}: columns {} to {}, expected at most {} logical columns", fill.name, fill.col,
                fill.col + fill.cols, fill.logical_cols);
}

}  // namespace tessera::ops
