// Collectives at the start and the end of a tensor-parallel region. Inside the region, the tp ranks apply different
// parts of the weights to the same tokens.
//
// Outside the region, each rank holds its part of the tokens under sequence parallelism (Context::split). Without
// sequence parallelism, each rank holds a copy of all tokens. The backward of enter_tp is leave_tp, and the backward of
// leave_tp is enter_tp. With one tp rank, both return their argument. Work that is enqueued on compute after the call
// waits for the result. On a CPU the host blocks until the result is ready. The functions start_enter_tp and
// start_leave_tp only start the collective, so that compute can do other work during the collective. With
// ProductOptions::tp_overlap, tokens travel in pieces (parallel/token_pieces.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <utility>
#include <vector>

#include "tessera/comm/communicator.h"
#include "tessera/nn/parallel/summed_parts.h"
#include "tessera/nn/pass_state.h"

namespace tessera::nn {

// The result of a transfer that may still be in flight. A derived class must wait for the transfer in its destructor,
// because an error may prevent the call of take().
class PendingResult {
 public:
  virtual ~PendingResult() = default;
  // Makes compute wait for the transfer and returns the result. One of take() and take_parts() is called, once.
  virtual at::Tensor take() = 0;
  // Like take(), but returns a sum as its parts if they are the result of the transfer.
  virtual SummedParts take_parts() { return take(); }
};

// The result of a collective that may still be running. Keeps the collective's input and output alive.
class PendingTensor {
 public:
  explicit PendingTensor(at::Tensor known) : out_(std::move(known)) {}  // a result that is ready
  PendingTensor(runtime::Program& program, runtime::Issued issued, at::Tensor in, at::Tensor out)
      : program_(&program), issued_(std::move(issued)), in_(std::move(in)), out_(std::move(out)) {}
  explicit PendingTensor(std::unique_ptr<PendingResult> result) : result_(std::move(result)) {}
  // If an error occurred before take(), waits until the collective has finished or failed, then frees its memory.
  ~PendingTensor();
  PendingTensor(PendingTensor&& other) noexcept
      : program_(std::exchange(other.program_, nullptr)),
        issued_(std::move(other.issued_)),
        in_(std::move(other.in_)),
        out_(std::move(other.out_)),
        result_(std::move(other.result_)) {}
  PendingTensor& operator=(PendingTensor&&) = delete;

  // Wait for the collective and return the result, as in PendingResult. One of the two is called, once.
  at::Tensor take();
  SummedParts take_parts();

 private:
  runtime::Program* program_ = nullptr;  // null: nothing to wait for
  runtime::Issued issued_;
  at::Tensor in_, out_;
  std::unique_ptr<PendingResult> result_;  // if not null, the result; the members above are then unused
};

// The first product that reads gathered tokens. Recorded with the pieces of the gather, so that the checker can compare
// the product with the waits (schedule/check/pieces.h).
struct TokenReader {
  schedule::ParameterId weight = schedule::kNoParameter;  // kNoParameter: other work reads the tokens
  bool is_wgrad =
      false;  // whether the product computes the weight's gradient; otherwise the product consumes the weight
};

// This rank's part of a gather over tp.
struct TokenPart {
  at::Tensor own;                    // contiguous: a matrix [own tokens, width], or a list of numbers
  std::vector<std::int64_t> counts;  // by tp rank: number of elements of its part
  quant::Format format = quant::Format::bf16;

  // Returns the shape of the parts of all ranks in [ranks.begin, ranks.end).
  std::vector<std::int64_t> shape(const layout::Range& ranks) const;
};
// Returns this rank's rows of a matrix with `tokens` rows as a part of the gather.
TokenPart part_of_rows(const Context& context, const at::Tensor& own, std::int64_t tokens);
// Starts the gather of the parts in rank order.
PendingTensor start_gather(const PassState& pass, const TokenPart& part, const TokenReader& reader);

PendingTensor start_enter_tp(const PassState& pass, const at::Tensor& x, std::int64_t tokens,
                             const TokenReader& reader = {});
// The caller must not use `part` afterwards: without sequence parallelism, the sum overwrites a contiguous `part`.
// writer: the weight that the product of `part` has consumed; kNoParameter: other work has written `part`.
PendingTensor start_leave_tp(const PassState& pass, const at::Tensor& part,
                             schedule::ParameterId writer = schedule::kNoParameter);

// Gathers the tokens: [own tokens, width] -> [tokens, width].
at::Tensor enter_tp(const PassState& pass, const at::Tensor& x, std::int64_t tokens, const TokenReader& reader = {});
// Sums every rank's `part` [tokens, width] and returns the sum for this rank's tokens: [own tokens, width]. Adds the
// parts in tp-rank order in the accumulator type and rounds once.
at::Tensor leave_tp(const PassState& pass, const at::Tensor& part);
// Reduces `x` in place over tp. `x` must be contiguous.
void all_reduce_tp(const PassState& pass, at::Tensor& x, comm::ReduceOp op);
// Reduces `x` as all_reduce_tp does, but records no event. For operations that are not in the schedule, because later
// steps skip them.
void reduce_unrecorded(const PassState& pass, at::Tensor& x, comm::ReduceOp op);

}  // namespace tessera::nn
