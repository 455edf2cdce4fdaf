// The work of an operator in numbers (flops, bytes, sizes), for dry runs. In a dry run tensors have shapes but no
// memory (ATen's meta device), and each operator reports its work instead of calling its kernel.
#pragma once
#include <ATen/core/Tensor.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <utility>

#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"

namespace tessera::ops {

enum class WorkKind : std::uint8_t {
  product,  // product of two matrices
  attention_forward,
  attention_backward,
  memory,  // reads and writes memory; its flops do not matter
};

// The function that computes a product: one of the functions of gemm.h, or `multiply` of operand.h for number formats.
enum class ProductCall : std::uint8_t { fprop, dgrad, wgrad, operands };

// The product of a rows x inner matrix and an inner x cols matrix.
struct ProductSizes {
  std::int64_t rows = 0, cols = 0, inner = 0;
  ProductCall call = ProductCall::fprop;
  quant::Format format = quant::Format::bf16;  // number format of both operands; bf16: they have the model's type
  quant::Encoding left = {}, right = {};       // encodings of the operands in a number format
  bool fast = false;                           // argument of `multiply`
  bool accumulate = false;

  auto operator<=>(const ProductSizes&) const = default;
};
// The sizes of an attention call.
struct AttentionSizes {
  std::int64_t batch = 0, seq_len = 0, q_heads = 0, kv_heads = 0, head_dim = 0;

  auto operator<=>(const AttentionSizes&) const = default;
};

struct Work {
  const char* name = "";
  WorkKind kind = WorkKind::memory;
  double flops = 0;           // additions and multiplications
  double bytes = 0;           // bytes of all operands and all results, each counted once
  ProductSizes product = {};  // set for a product
  AttentionSizes sizes = {};  // set for attention
};

// During this scope, a dry run calls `take` with the work of each operator of this thread. Without a scope the work is
// discarded. Scopes can nest; the innermost scope receives the work.
class WorkScope {
 public:
  using Take = std::function<void(const Work&)>;
  explicit WorkScope(Take take);
  ~WorkScope();
  WorkScope(const WorkScope&) = delete;
  WorkScope& operator=(const WorkScope&) = delete;

 private:
  Take take_;
  WorkScope* outer_;

  friend void report(const Work& work);
};

// Passes the work of an operator to this thread's innermost scope.
void report(const Work& work);
inline bool is_dry(const at::Tensor& tensor) {
  return tensor.is_meta();
}
// Returns the work of an operator that only reads and writes `bytes` bytes.
Work memory_work(const char* name, std::int64_t bytes);
// Returns the work of a product of matrices with these element types.
Work product_work(const char* name, const ProductSizes& product, quant::DType operands, quant::DType result);

}  // namespace tessera::ops
