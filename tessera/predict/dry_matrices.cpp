#include "tessera/predict/dry_matrices.h"

#include <algorithm>

#include "tessera/ops/optimizer/matrices/matrix_rule.h"

namespace tessera::predict {

DryMatrices::DryMatrices(runtime::Program& program, const ops::UpdatePolicy& policy, const shard::RankLayout& layout,
                         int rank, bool zero)
    : program_(program), policy_(policy) {
  for (const auto& rule : policy.rules)
    if (const ops::MatrixRule* matrices = rule->matrix_rule())
      rules_.push_back(
          {.rule = rule.get(), .plan = {layout, rank, zero, [matrices](std::int64_t rows, std::int64_t cols) {
                                          return matrices->flops(rows, cols);
                                        }}});
}

std::vector<runtime::MatrixExchange> DryMatrices::exchanges(std::span<const schedule::ParameterId> bucket) {
  const runtime::ParameterTable& parameters = program_.parameters();
  std::vector<runtime::MatrixExchange> calls;
  for (Rule& rule : rules_) {
    std::vector<shard::MatrixParameter> of_rule;
    for (const schedule::ParameterId id : bucket)
      if (&policy_.rule_of(parameters.name(id)) == rule.rule)
        of_rule.push_back({id, &parameters.spec(id), parameters.types(id).model});
    if (of_rule.empty()) continue;
    for (const shard::JoinedMatrices& joined : rule.plan.add(of_rule)) {
      runtime::MatrixExchange call{.transfer = rule.plan.transfer(),
                                   .ranks = static_cast<int>(rule.plan.group().size()),
                                   .bytes = joined.gathered_bytes,
                                   .type = joined.type};
      calls.push_back(call);
      call.op = schedule::kScatterMatricesOp;
      call.bytes = joined.scattered_bytes;
      calls.push_back(call);
      flops_.push_back(std::ranges::max(joined.flops));
      rule.state_bytes = std::max(rule.state_bytes, shard::bytes_of(joined.state_elements(), joined.type));
      rule.matrix_bytes = std::max(rule.matrix_bytes, shard::bytes_of(joined.matrix_elements(), joined.type));
      for (int rank = 0; rank < call.ranks; ++rank)
        for (const shard::LocalMatrices& its : joined.matrices_of(rank))
          rule.scratch_bytes = std::max(
              rule.scratch_bytes, rule.rule->matrix_rule()->scratch_bytes(
                                      {.count = its.count, .rows = its.rows, .cols = its.cols, .type = joined.type}));
    }
  }
  return calls;
}

std::int64_t DryMatrices::buffers() const {
  std::int64_t bytes = 0;
  for (const Rule& rule : rules_) bytes += rule.state_bytes + rule.matrix_bytes;
  return bytes;
}

std::int64_t DryMatrices::scratch() const {
  std::int64_t bytes = 0;
  for (const Rule& rule : rules_) bytes += rule.scratch_bytes;
  return bytes;
}

}  // namespace tessera::predict
