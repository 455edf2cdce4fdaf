// The work of an operator in numbers, for dry runs. Each operator reports its work at the place where it calls its
// kernel. In a dry run tensors have shapes and no memory (ATen's meta device), and no kernel runs.
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
  memory,  // only reads and writes
};

// The function that computes a product: a function of gemm.h, or multiply of operands in a number format (operand.h).
enum class ProductCall : std::uint8_t { fprop, dgrad, wgrad, operands };

// A product of rows x inner by inner x cols. With `accumulate` the result is added to existing values.
struct ProductSizes {
  std::int64_t rows = 0, cols = 0, inner = 0;
  ProductCall call = ProductCall::fprop;
  quant::Format format = quant::Format::bf16;  // format of both operands; bf16 also represents the model's type
  quant::Encoding left = {}, right = {};       // of operands
  bool fast = false;                           // the argument of multiply
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
  double bytes = 0;           // each operand read once, each result written once
  ProductSizes product = {};  // for a product
  AttentionSizes sizes = {};  // for attention
};

// During this scope, `take` receives the work of this thread's operators in a dry run. Without a scope the work is
// discarded. Scopes nest; the innermost receives the work.
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

// Reports the work of an operator in a dry run.
void report(const Work& work);
inline bool is_dry(const at::Tensor& tensor) {
  return tensor.is_meta();
}
// Returns the work of an operator that only reads and writes `bytes` bytes.
Work memory_work(const char* name, std::int64_t bytes);
// Returns the work of a product of matrices with these element types.
Work product_work(const char* name, const ProductSizes& product, quant::DType operands, quant::DType result);

}  // namespace tessera::ops
