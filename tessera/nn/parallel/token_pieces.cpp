#include "tessera/nn/parallel/token_pieces.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/ops/aten_types.h"
#include "tessera/ops/norm/sum_of_parts.h"

namespace tessera::nn {
namespace {

// Returns an uninitialized matrix or list of numbers.
TransferMatrix transfer_matrix(const PassState& pass, at::IntArrayRef shape, const at::Tensor& like) {
  const std::int64_t elements = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
  runtime::TransferMemory memory =
      pass.context.program.take_transfer(elements * static_cast<std::int64_t>(like.element_size()));
  // The matrix of a dry run has no memory.
  if (memory.data != nullptr || like.is_meta())
    return {.matrix = at::from_blob(
                memory.data, shape, [hold = std::move(memory.hold)](void*) {}, like.options(), like.device()),
            .offset = memory.offset};
  // The arena has no memory for the range. The range counts for the arena's peak until the matrix is freed.
  const at::Tensor other = at::empty(shape, like.options());
  return {.matrix = at::from_blob(
              other.mutable_data_ptr(), shape, [other, hold = std::move(memory.hold)](void*) {}, like.options()),
          .offset = memory.offset};
}

std::vector<std::int64_t> elements_by_rank(const Context& context, std::int64_t tokens, std::int64_t width) {
  std::vector<std::int64_t> elements;
  for (int rank = 0; rank < context.tp_size(); ++rank) elements.push_back(context.tokens_of(rank, tokens) * width);
  return elements;
}

at::Tensor rows_of_rank(const Context& context, const at::Tensor& all, int rank) {
  const layout::Range rows = context.split.part(all.size(0), rank, context.tp_size());
  return all.narrow(0, rows.begin, rows.size());
}

}  // namespace

BegunPieces::~BegunPieces() {
  for (; awaited_ < size(); ++awaited_) pieces_[static_cast<std::size_t>(awaited_)].done.wait_until_done();
}

void BegunPieces::begin(const runtime::ProgramCollective& piece) {
  runtime::Issued& issued = pieces_.emplace_back();  // before the piece begins, because this line may throw
  issued = program_.issue(piece);
}

void BegunPieces::await(int pieces) {
  for (; awaited_ < pieces; ++awaited_) program_.wait(pieces_[static_cast<std::size_t>(awaited_)]);
}

bool travels_in_pieces(const Context& context) {
  return context.products.tp_overlap && context.sequence_parallel && context.has_tp();
}

GatherInPieces::GatherInPieces(const PassState& pass, TokenPart part, const TokenReader& reader)
    : context_(pass.context), part_(std::move(part)), pieces_(pass.context.program) {
  TransferMatrix all = transfer_matrix(pass, part_.shape({.begin = 0, .end = pass.context.tp_size()}), part_.own);
  all_ = std::move(all.matrix);
  if (pass.context.tp_size() == 1) all_.copy_(part_.own);  // the other places of the tp group have no rank
  for (int piece = 1; piece < pass.context.program.nominal_size(); ++piece)
    pieces_.begin({.kind = runtime::ProgramCollectiveKind::gather_piece,
                   .in = part_.own.const_data_ptr(),
                   .out = all_.mutable_data_ptr(),
                   .counts = part_.counts,
                   .type = ops::to_dtype(part_.own.scalar_type()),
                   .format = part_.format,
                   .pass = pass.id,
                   .piece = piece,
                   .weight = reader.weight,
                   .is_for_wgrad = reader.is_wgrad,
                   .offset = all.offset});
}

at::Tensor GatherInPieces::parts(const TokenChunk& chunk, bool is_last) {
  if (is_last) pieces_.await(pieces_.size());
  const int size = context_.tp_size(), rank = context_.tp_rank();
  const std::vector<std::int64_t> shape = part_.shape(chunk.ranks);
  if (rank >= chunk.ranks.begin && rank < chunk.ranks.end && part_.own.sizes() == shape) return part_.own;
  int last = 1;  // the first piece also copies this rank's own part
  for (std::int64_t source = chunk.ranks.begin; source < chunk.ranks.end; ++source)
    last = std::max(last, static_cast<int>((rank - source + size) % size));
  pieces_.await(std::min(last, pieces_.size()));
  return all_.narrow(0, part_.shape({.begin = 0, .end = chunk.ranks.begin})[0], shape[0]);
}

at::Tensor GatherInPieces::take() {
  pieces_.await(pieces_.size());
  part_.own = at::Tensor();
  return std::exchange(all_, at::Tensor());
}

ScatterInPieces::ScatterInPieces(const PassState& pass, const at::Tensor& part, schedule::ParameterId writer)
    : pass_(pass),
      writer_(writer),
      part_(part.contiguous()),
      counts_(elements_by_rank(pass.context, part.size(0), part.size(1))),
      written_(static_cast<std::size_t>(pass.context.tp_size())),
      pieces_(pass.context.program) {
  const std::int64_t own = pass.context.tokens_of(pass.context.tp_rank(), part_.size(0));
  for (int rank = 0; rank < pass.context.tp_size(); ++rank)
    parts_.push_back(rank == pass.context.tp_rank() ? TransferMatrix{.matrix = rows_of_rank(pass.context, part_, rank)}
                                                    : transfer_matrix(pass, {own, part_.size(1)}, part_));
}

void ScatterInPieces::written(const layout::Range& ranks) {
  for (std::int64_t rank = ranks.begin; rank < ranks.end; ++rank) written_[static_cast<std::size_t>(rank)] = true;
  const int size = pass_.context.tp_size();
  while (pieces_.size() + 1 < pass_.context.program.nominal_size()) {
    const int piece = pieces_.size() + 1;
    const bool has_peers = piece < size;
    if (has_peers && !written_[static_cast<std::size_t>((pass_.context.tp_rank() + piece) % size)]) return;
    const TransferMatrix received =
        has_peers ? parts_[static_cast<std::size_t>((pass_.context.tp_rank() - piece + size) % size)]
                  : TransferMatrix{};
    pieces_.begin({.kind = runtime::ProgramCollectiveKind::scatter_piece,
                   .in = part_.const_data_ptr(),
                   .out = has_peers ? received.matrix.mutable_data_ptr() : nullptr,
                   .counts = counts_,
                   .type = ops::to_dtype(part_.scalar_type()),
                   .pass = pass_.id,
                   .piece = piece,
                   .weight = writer_,
                   .offset = received.offset});
  }
}

std::vector<at::Tensor> ScatterInPieces::await() {
  const int expected = pass_.context.program.nominal_size() - 1;
  TESSERA_CHECK(pieces_.size() == expected, "a sum over tp has begun {} pieces, expected {}", pieces_.size(), expected);
  pieces_.await(expected);
  std::vector<int> ranks;
  std::vector<at::Tensor> parts;
  for (TransferMatrix& part : parts_) {
    ranks.push_back(static_cast<int>(ranks.size()));
    parts.push_back(std::move(part.matrix));
  }
  parts_.clear();
  pass_.context.program.record_sum({.ranks = ranks, .pass = pass_.id, .weight = writer_});
  return parts;
}

at::Tensor ScatterInPieces::take() {
  return sum_of(pass_, SummedParts(await()));
}

SummedParts ScatterInPieces::take_parts() {
  if (parts_.size() > ops::kMaxSummedParts) return take();
  return SummedParts(await());
}

}  // namespace tessera::nn
