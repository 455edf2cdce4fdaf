#include "tessera/base/error.h"
#include "tessera/bench/kernels/products.h"

namespace tessera::bench {

std::vector<ProductRow> product_rows(const ProductBench&) {
  throw InputError("bench products: this build has no CUDA");
}

}  // namespace tessera::bench
