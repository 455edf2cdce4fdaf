// What an operator does, in numbers: each says it itself, at the one place where it goes to a kernel. A dry run
// collects it. In a dry run tensors have shapes and no memory (ATen's meta device), and no kernel runs.
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
  product,  // of two matrices
  attention_forward,
  attention_backward,
  memory,  // what only reads and writes
};

// Which call it is: one of gemm.h, or multiply of operands in a number format (operand.h).
enum class ProductCall : std::uint8_t { fprop, dgrad, wgrad, operands };

// rows x inner times inner x cols. With accumulate the result is added to what stands there.
struct ProductSizes {
  std::int64_t rows = 0, cols = 0, inner = 0;
  ProductCall call = ProductCall::fprop;
  quant::Format format = quant::Format::bf16;  // of both sides; bf16 stands for the model's type too
  quant::Encoding left = {}, right = {};       // of operands
  bool fast = false;                           // multiply's
  bool accumulate = false;

  auto operator<=>(const ProductSizes&) const = default;
};
// Of one attention: its tensors' sizes.
struct AttentionSizes {
  std::int64_t batch = 0, seq_len = 0, q_heads = 0, kv_heads = 0, head_dim = 0;

  auto operator<=>(const AttentionSizes&) const = default;
};

struct Work {
  const char* name = "";
  WorkKind kind = WorkKind::memory;
  double flops = 0;           // additions and multiplications
  double bytes = 0;           // each operand read once, each result written once
  ProductSizes product = {};  // of a product
  AttentionSizes sizes = {};  // of attention
};

// While one is in scope, what operators of this thread do dry goes to `take`; without one it goes nowhere. Scopes nest.
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

// Of an operator that runs dry.
void report(const Work& work);
inline bool is_dry(const at::Tensor& tensor) {
  return tensor.is_meta();
}
// What reads and writes so many bytes.
Work memory_work(const char* name, std::int64_t bytes);
// A product of matrices with elements of these types.
Work product_work(const char* name, const ProductSizes& product, quant::DType operands, quant::DType result);

}  // namespace tessera::ops
