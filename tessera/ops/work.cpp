#include "tessera/ops/work.h"

namespace tessera::ops {
namespace {

thread_local WorkScope* innermost_scope = nullptr;

double size(quant::DType type) {
  return static_cast<double>(quant::size_of(type));
}

}  // namespace

WorkScope::WorkScope(Take take) : take_(std::move(take)), outer_(std::exchange(innermost_scope, this)) {}

WorkScope::~WorkScope() {
  innermost_scope = outer_;
}

void report(const Work& work) {
  if (innermost_scope != nullptr) innermost_scope->take_(work);
}

Work memory_work(const char* name, std::int64_t bytes) {
  return {.name = name, .bytes = static_cast<double>(bytes)};
}

Work product_work(const char* name, const ProductSizes& product, quant::DType operands, quant::DType result) {
  const auto rows = static_cast<double>(product.rows), cols = static_cast<double>(product.cols),
             inner = static_cast<double>(product.inner);
  return {.name = name,
          .kind = WorkKind::product,
          .flops = 2 * rows * cols * inner,
          .bytes = (rows + cols) * inner * size(operands) + (product.accumulate ? 2 : 1) * rows * cols * size(result),
          .product = product};
}

}  // namespace tessera::ops
