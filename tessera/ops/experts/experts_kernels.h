// Arguments of the CUDA kernels of experts. All pointers point to device memory. Matrices are row-major. T is the
// model's type. A is the accumulator type: fp32 if T is bf16 or fp32, fp64 if T is fp64. Internal to ops.
#pragma once
#include <cstdint>

#include "tessera/base/cuda_stream.h"
#include "tessera/ops/router/router_chunks.h"
#include "tessera/ops/router/router_options.h"
#include "tessera/quant/dtype.h"

namespace tessera::ops {

// ---- router

struct RouterProductArguments {
  quant::DType type = quant::DType::fp32;  // T, the type of x
  std::int64_t tokens = 0, experts = 0, hidden = 0;
  const void* x = nullptr;        // [tokens, hidden] T
  const void* w = nullptr;        // [experts, hidden] A
  const void* dlogits = nullptr;  // [tokens, experts] A
  const void* addend = nullptr;   // dgrad only: [tokens, hidden] T, added to the product; null: no addend
  void* parts = nullptr;          // wgrad only: [chunks of kRouterGradientChunk tokens, experts, hidden] A, scratch
  void* scratch = nullptr;        // router_scratch() bytes
  void* result = nullptr;         // type A; type T if there is an addend
};

struct RouteArguments {
  quant::DType type = quant::DType::fp32;  // A
  std::int64_t tokens = 0, experts = 0;
  RouterOptions options;
  const void* logits = nullptr;     // [tokens, experts] A
  const void* bias = nullptr;       // [experts] A; null: no bias
  void* probabilities = nullptr;    // [tokens, experts] A
  void* logsumexp = nullptr;        // [tokens] A
  std::int32_t* choices = nullptr;  // [tokens, k]
  void* weights = nullptr;          // [tokens, k] A
};

struct RouterSumsArguments {
  quant::DType type = quant::DType::fp32;  // A
  std::int64_t tokens = 0, experts = 0, k = 0;
  const void* probabilities = nullptr;    // [tokens, experts] A
  const void* logsumexp = nullptr;        // [tokens] A
  const std::int32_t* choices = nullptr;  // [tokens, k]
  const bool* counted = nullptr;          // [tokens]
  void* chunk_sums = nullptr;             // scratch: [chunks, experts + 1] A
  std::int32_t* chunk_counts = nullptr;   // scratch: [chunks, experts]
  std::int64_t* counts = nullptr;         // [experts]
  void* sums = nullptr;                   // [experts] A
  void* squares = nullptr;                // [1] A
};

struct RouteBackwardArguments {
  quant::DType type = quant::DType::fp32;  // A
  std::int64_t tokens = 0, experts = 0;
  RouterOptions options;
  const void* probabilities = nullptr;    // [tokens, experts] A
  const void* logsumexp = nullptr;        // [tokens] A
  const std::int32_t* choices = nullptr;  // [tokens, k]
  const void* weights = nullptr;          // [tokens, k] A
  const bool* counted = nullptr;          // [tokens]
  const void* dweights = nullptr;         // [tokens, k] A, or null for zeros
  const void* dprobabilities = nullptr;   // [experts] A, or null for zeros
  const void* dsquares = nullptr;         // [1] A, or null for zero
  void* dlogits = nullptr;                // [tokens, experts] A
};

// ---- rows

// The choices consist of `blocks` blocks of `length` tokens.
struct CapacityArguments {
  quant::DType type = quant::DType::fp32;  // A
  std::int64_t length = 0, blocks = 0, k = 0, first = 0, local = 0, capacity = 0;
  const std::int32_t* choices = nullptr;  // [blocks * length, k]
  const void* weights = nullptr;          // [blocks * length, k] A
  // [blocks * length, k]: a copy of the choices. The kernel writes -1 for each dropped choice.
  std::int32_t* kept = nullptr;
};

struct SelectRowsArguments {
  std::int64_t tokens = 0, k = 0, first = 0, local = 0, room = 0;
  std::int64_t expected = 0;              // Selection::expected
  std::int64_t* overflows = nullptr;      // RowRoom::overflows; may be null
  double* needed = nullptr;               // RowRoom::needed; may be null
  const std::int32_t* choices = nullptr;  // [tokens, k]
  std::int32_t* counts = nullptr;         // scratch: select_rows_scratch() integers
  std::int32_t* rows_by_slot = nullptr;   // [tokens, k]: the row of each choice; -1: the choice has no row
  // [tokens, k]: the rows of each token in ascending order, which is also the order of their experts. -1 after the last
  // row.
  std::int32_t* rows_in_order = nullptr;
  std::int32_t* row_tokens = nullptr;  // [room]: the token of each row
  std::int32_t* ends = nullptr;        // [local]: the end of the rows of each expert
  std::int64_t blocks = 1;
  std::int32_t* block_ends = nullptr;  // [local * blocks]: the ends in each block; `ends` if there is one block
};

struct MoveRowsArguments {
  quant::DType type = quant::DType::fp32;  // T
  std::int64_t tokens = 0, k = 0, width = 0;
  const std::int32_t* rows_in_order = nullptr;  // [tokens, k]
  const void* from = nullptr;                   // take_rows: [tokens, width]; combine_rows: [room, width]
  void* to = nullptr;                           // take_rows: [room, width]; combine_rows: [tokens, width]
};

struct MoveChoicesArguments {
  quant::DType type = quant::DType::fp32;  // A
  std::int64_t choices = 0;                // tokens * k
  const std::int32_t* rows_by_slot = nullptr;
  const void* from = nullptr;  // take_choices: [tokens, k]; put_choices: [room]
  void* to = nullptr;          // take_choices: [room]; put_choices: [tokens, k]
};

struct WeightedSwigluArguments {
  quant::DType type = quant::DType::fp32;  // T
  std::int64_t room = 0, features = 0;     // gate_up has 2 * features columns
  const std::int32_t* rows = nullptr;      // pointer to the number of rows
  const void* gate_up = nullptr;           // [room, 2 * features] T
  const void* weights = nullptr;           // [room] A
  const void* dout = nullptr;              // backward only: [room, features] T
  void* result = nullptr;                  // forward: the output; backward: the gradient of gate_up
  void* dweights = nullptr;                // backward only: [room] A
  void* output = nullptr;                  // backward only: if not null, the output is also written here
};

// ---- products of fp32 and fp64

enum class GroupedProduct : std::uint8_t { fprop, dgrad, wgrad };

struct PlainProductArguments {
  GroupedProduct product = GroupedProduct::fprop;
  quant::DType type = quant::DType::fp32;  // fp32 or fp64, of all operands
  std::int64_t local = 0, room = 0, out = 0, in = 0;
  const std::int32_t* ends = nullptr;  // [local]
  const void* rows = nullptr;          // fprop: x [room, in]; dgrad and wgrad: dy [room, out]
  const void* other = nullptr;         // fprop and dgrad: w [local * out, in]; wgrad: x [room, in]
  void* result = nullptr;              // [room, out], [room, in] or [local * out, in]
};

namespace cuda {

// For bf16, products use tensor cores (router_split.h). For fp32 and fp64 they have the bits of a CPU.
void router_logits(const RouterProductArguments& arguments, base::CudaStream stream);
void router_dgrad(const RouterProductArguments& arguments, base::CudaStream stream);
void router_wgrad(const RouterProductArguments& arguments, base::CudaStream stream);
// Returns the bytes of scratch memory of any of these products.
std::int64_t router_scratch(const RouterProductArguments& arguments);
void route(const RouteArguments& arguments, base::CudaStream stream);
void router_sums(const RouterSumsArguments& arguments, base::CudaStream stream);
void route_backward(const RouteBackwardArguments& arguments, base::CudaStream stream);

void drop_beyond_capacity(const CapacityArguments& arguments, base::CudaStream stream);
std::int64_t select_rows_scratch(std::int64_t tokens, std::int64_t local);
void select_rows(const SelectRowsArguments& arguments, base::CudaStream stream);
void take_rows(const MoveRowsArguments& arguments, base::CudaStream stream);
void combine_rows(const MoveRowsArguments& arguments, base::CudaStream stream);
void take_choices(const MoveChoicesArguments& arguments, base::CudaStream stream);
void put_choices(const MoveChoicesArguments& arguments, base::CudaStream stream);

void weighted_swiglu(const WeightedSwigluArguments& arguments, base::CudaStream stream);
void weighted_swiglu_backward(const WeightedSwigluArguments& arguments, base::CudaStream stream);

void plain_product(const PlainProductArguments& arguments, base::CudaStream stream);

}  // namespace cuda
}  // namespace tessera::ops
