// The three products of a linear layer's weight, in the number format of the weight. If the format is not bf16, both
// factors are quantized first. The sums and results of all products have the types of bf16 products.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "tessera/nn/parallel/token_chunks.h"
#include "tessera/nn/parallel/token_wire.h"
#include "tessera/nn/weight.h"
#include "tessera/ops/gemm/operand.h"

namespace tessera::nn {

// Which matrix of a layer a product reads: the layer's x, or the gradient of its y.
enum class OperandKind : std::uint8_t { input, gradient };

// One factor of a product: the matrix for a bf16 product, otherwise the operands made from the matrix.
struct Factor {
  at::Tensor matrix;
  ops::Operands operands;
};

// Adds the weight's matrices to the context's delayed scales, if the weight has fp8 products and scaling is delayed.
// Call this function before the first step, on every rank in the same order.
void add_scales(const Context& context, Weight& weight);

// How a layer quantizes a matrix of this kind.
quant::Encoding encoding_of(const Context& context, const Weight& weight, OperandKind kind);
bool is_delayed(const Context& context, const Weight& weight, OperandKind kind);  // whether it has a delayed scale
// Returns the matrix's delayed scale; nullopt if it has none, or if the amaxes of an earlier step are not known.
std::optional<ops::WholeScale> known_scale(const PassState& pass, const Weight& weight, OperandKind kind);
// Returns the address to which a product writes the amax of a matrix with a delayed scale, otherwise null. In training,
// the scales of later steps are computed from this amax.
float* place_of_amax(const PassState& pass, const Weight& weight, OperandKind kind);

// Returns the factor of a whole matrix. Under sequence parallelism, `own` has this rank's rows of the matrix, and the
// function gathers the rows of all ranks. Otherwise `own` is the whole matrix. The whole matrix has `tokens` rows.
// Collective over tp.
Factor factor_of_tokens(const PassState& pass, const Weight& weight, OperandKind kind, const at::Tensor& own,
                        std::int64_t tokens, ops::Sides sides);
// Returns this rank's tokens of a factor as codes if the codes are gathered over tp (token_wire.h). Returns nullopt if
// the tokens are gathered without quantization. The whole matrix has `tokens` rows, and the products need `sides`.
// Collective over tp if codes are returned.
std::optional<TokenCodes> codes_of_tokens(const PassState& pass, const Weight& weight, OperandKind kind,
                                          const at::Tensor& own, std::int64_t tokens, ops::Sides sides);
// Starts the gather of factor_of_tokens. Returns a function that waits for the gather and returns the factor. The
// caller calls this function once.
std::function<Factor()> start_factor_of_tokens(const PassState& pass, const Weight& weight, OperandKind kind,
                                               const at::Tensor& own, std::int64_t tokens, ops::Sides sides);
// Returns the factor of this rank's part of a matrix whose columns are sharded over tp. The parts of all ranks have the
// same scale. Collective over tp.
Factor factor_of_columns(const PassState& pass, const Weight& weight, OperandKind kind, const at::Tensor& part,
                         ops::Sides sides);

// Returns factor_of_columns(swiglu(gate_up)) with OperandKind::input.
Factor factor_of_swiglu(const PassState& pass, const Weight& weight, const at::Tensor& gate_up, ops::Sides sides);
// The factors that backward makes from dout, the gradient of swiglu(gate_up).
struct SwigluFactors {
  Factor gradient;  // gradient of gate_up: factor of the backward products of `weight`
  Factor out;       // swiglu(gate_up) by columns: factor of the wgrad of `reader`
};
// weight: the weight whose product is gate_up. reader: the weight that is multiplied by swiglu(gate_up); null if
// SwigluFactors::out is not needed.
SwigluFactors factors_of_swiglu_backward(const PassState& pass, const Weight& weight, const Weight* reader,
                                         const at::Tensor& dout, const at::Tensor& gate_up);

// Returns whether forward keeps an operand for wgrad instead of the input. Forward then quantizes the input by rows and
// by columns in one pass, and keeps the operand by columns. `tokens` describes the input before it is gathered over tp.
// Returns false if the input is gathered, because an operand of all tokens needs more memory than the input of this
// rank's own tokens.
bool keeps_columns(const PassState& pass, const Weight& weight, Tokens tokens);
// An input's operand by columns that is kept for backward: its values (on a CPU) or its codes and scales, and the amax
// that the operand has. Some tensors are undefined.
struct KeptColumns {
  at::Tensor data, scales, amax;
};
KeptColumns kept_columns(const Factor& input);
// Returns the items of a stash (stash.h) of the tensors and of an input's kept columns. The bytes of kept columns are
// those that a GPU needs.
std::vector<runtime::StashItem> with_columns(at::TensorList tensors, const Factor& input);
// Returns the factor of an input with `tokens` rows from its kept columns.
Factor factor_of_kept(const Context& context, const Weight& weight, const KeptColumns& columns, std::int64_t tokens);

// Returns the number of rows of a factor. The factor must contain the operand by rows.
std::int64_t tokens_of(const Factor& factor);
// The chunks into which a product is divided. The bits of the result depend on the chunks, but not on their order.
struct ChunkedProduct {
  // The chunks in the order in which they are multiplied. The chunks together contain all rows. Empty: one product of
  // all rows.
  std::vector<TokenChunk> chunks;
  // Returns the rows of a chunk as a rowwise factor. Called directly before the product of the chunk. If null, the rows
  // come from the factor that is passed to fprop or dgrad. If not null, that factor is not read.
  std::function<Factor(const TokenChunk& chunk)> rows;
  // Called after the product of a chunk. `result` is the result of all rows. May be null.
  std::function<void(const TokenChunk& chunk, const at::Tensor& result)> after;
};
// Returns y = x w^T. Reads the operand of x by rows. Consumes the weight in the pass.
at::Tensor fprop(const PassState& pass, const Weight& weight, const Factor& x, const ChunkedProduct& how = {});
// Returns dx = dy w. Reads the operand of dy by rows.
at::Tensor dgrad(const PassState& pass, const Weight& weight, const Factor& dy, const ChunkedProduct& how = {});
// Computes dw = dy^T x. Reads dy and x by columns. Produces the weight's gradient; does nothing for a frozen weight.
void wgrad(const PassState& pass, const Weight& weight, const Factor& dy, const Factor& x);

}  // namespace tessera::nn
