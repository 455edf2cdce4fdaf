#include "tessera/nn/experts/expert_group.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/ops/aten_types.h"

namespace tessera::nn {

ExpertGroup::ExpertGroup(const PassState& pass, std::int64_t tokens) : pass_(pass) {
  const shard::ComputeGroup& group = pass.context.program.compute_group(kExpertDomain);
  const int tp = pass.context.tp_size();
  blocks_ = std::ranges::count(group.first_ranks, 0);
  TESSERA_CHECK(blocks_ * tp == group.size, "{} ranks of experts and {} tp ranks, expected whole tp groups", group.size,
                tp);
  TESSERA_CHECK(tp == 1 || pass.context.sequence_parallel, "experts with {} tp ranks need sequence parallelism", tp);
  for (const int rank : group.first_ranks) by_rank_.push_back(tp == 1 ? tokens : pass.context.tokens_of(rank, tokens));
  own_ = by_rank_[static_cast<std::size_t>(group.rank)];
  all_ = std::accumulate(by_rank_.begin(), by_rank_.end(), std::int64_t{0});
}

std::vector<std::int64_t> ExpertGroup::counts(std::int64_t width) const {
  std::vector<std::int64_t> elements;
  for (const std::int64_t tokens : by_rank_) elements.push_back(tokens * width);
  return elements;
}

PendingTensor ExpertGroup::start(runtime::ProgramCollectiveKind kind, const at::Tensor& in,
                                 const at::Tensor& out) const {
  const std::vector<std::int64_t> elements = counts(in.size(1));
  runtime::Issued issued = pass_.context.program.issue({.kind = kind,
                                                        .in = in.const_data_ptr(),
                                                        .out = out.mutable_data_ptr(),
                                                        .counts = elements,
                                                        .type = ops::to_dtype(in.scalar_type()),
                                                        .pass = pass_.id,
                                                        .domain = kExpertDomain});
  return {pass_.context.program, std::move(issued), in, out};
}

PendingTensor ExpertGroup::start_gather(const at::Tensor& x) const {
  if (pass_.context.program.nominal_size(kExpertDomain) == 1) return PendingTensor(x);
  return start(runtime::ProgramCollectiveKind::all_gather, x.contiguous(), at::empty({all_, x.size(1)}, x.options()));
}

PendingTensor ExpertGroup::start_reduce(const at::Tensor& part) const {
  if (pass_.context.program.nominal_size(kExpertDomain) == 1) return PendingTensor(part);
  return start(runtime::ProgramCollectiveKind::reduce_scatter, part.contiguous(),
               at::empty({own_, part.size(1)}, part.options()));
}

}  // namespace tessera::nn
