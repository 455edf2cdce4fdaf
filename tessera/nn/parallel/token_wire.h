// Tokens that are gathered over tp for a product in a number format. With ProductOptions::tp_wire, the ranks send codes
// and scales in this format, or bf16 numbers if these have fewer bytes. The bits of the result are the same.
//
//   operands of the product   sent
//   by rows                   codes by rows
//   by columns                codes by columns, if each rank's tokens begin at a tile
//   both                      both codes, if columns can be sent and both have fewer bytes than bf16 numbers
//
// In a format with one scale per matrix, the same codes serve both sides. If a T of the whole matrix is needed, the
// ranks share it before they quantize.
#pragma once
#include <optional>
#include <vector>

#include "tessera/nn/collectives.h"
#include "tessera/nn/pass_state.h"
#include "tessera/nn/weight.h"
#include "tessera/ops/gemm/operand_codes.h"

namespace tessera::nn {

// A gather of tokens for a product in the format of the wire. All ranks of a replica have equal values.
struct TokenGather {
  quant::Encoding encoding;  // of the operand by rows
  quant::Extent matrix;      // of all tokens
  ops::Sides sides = ops::Sides::rows;
  bool begins_at_tiles = true;      // whether each rank's tokens begin at a tile of the operand by columns
  bool transforms_columns = false;  // whether the columns are transformed before they are quantized
};
// Returns why the ranks send bf16 numbers; nullopt if they send codes.
std::optional<runtime::TpWireFallback> wire_fallback(const TokenGather& gather);

// Returns whether each rank's tokens begin at a multiple of `tile` tokens. Returns false if ranks of the replica's
// other tp groups may hold other tokens, because all groups make the same decision.
bool begins_at_tiles(const Context& context, std::int64_t tokens, std::int64_t tile);

// This rank's tokens of a factor as codes, and the numbers that all ranks share.
struct TokenCodes {
  ops::OperandCodes own;             // the sides that are sent
  std::vector<std::int64_t> tokens;  // by tp rank: number of its tokens
  std::int64_t cols = 0;
  quant::Encoding encoding;
  ops::WholeScale whole;
  quant::Format format = quant::Format::bf16;

  // Return this rank's part of the gather of codes by rows or by columns. The codes of this side must be sent.
  TokenPart rows() const { return part(own.rows, ops::Sides::rows); }
  TokenPart columns() const { return part(own.columns, ops::Sides::columns); }
  // Returns the operand of the tokens of some ranks from their codes, as gathered.
  ops::Operand operand(const at::Tensor& codes, const layout::Range& ranks, ops::Sides side) const;
  layout::Range all_ranks() const { return {.begin = 0, .end = static_cast<std::int64_t>(tokens.size())}; }

 private:
  TokenPart part(const at::Tensor& codes, ops::Sides side) const;
};

// Returns whether the tokens of a factor for this weight's products travel as codes unless wire_fallback has a reason.
bool has_coded_wire(const Context& context, const Weight& weight);

}  // namespace tessera::nn
