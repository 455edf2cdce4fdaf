#include "tessera/shard/matrices/matrix_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/layout/redistribute.h"
#include "tessera/shard/parameter_layouts.h"

namespace tessera::shard {
namespace {

using mesh::Transfer;

std::int64_t aligned(std::int64_t elements) {
  return (elements + kMatrixAlignment - 1) / kMatrixAlignment * kMatrixAlignment;
}

// Returns the group of a rank for the exchanges, which is the same in all domains.
std::vector<int> group_with(const RankLayout& layout, int rank, Transfer transfer) {
  std::vector<int> group = layout.mesh.group_of(rank, role_of(layout.mesh, layout.domains.front(), transfer).axes);
  for (const Domain& domain : layout.domains)
    TESSERA_CHECK(layout.mesh.group_of(rank, role_of(layout.mesh, domain, transfer).axes) == group,
                  "rules of matrices: the replicas of the domains have different ranks, expected equal ranks");
  return group;
}

std::int64_t most_received(const layout::Layout& from, const layout::Layout& to, quant::DType type) {
  const layout::TransferPlan plan = layout::redistribute(from, to);
  std::int64_t most = 0;
  for (int rank = 0; rank < plan.ranks; ++rank) most = std::max(most, plan.elements_received(rank));
  return bytes_of(most, type);
}

bool is_split(const RankLayout& layout, int rank, bool zero) {
  return std::ranges::any_of(layout.domains, [&](const Domain& domain) {
    Cuts cuts = cuts_of(layout.mesh, domain, rank);
    cuts.zero = zero;
    return cuts.splits_state();
  });
}

}  // namespace

std::int64_t JoinedMatrices::state_elements() const {
  return std::ranges::max(states.ranks, {}, &layout::LocalLayout::size).size;
}

std::int64_t JoinedMatrices::matrix_elements() const {
  return std::ranges::max(wholes.ranks, {}, &layout::LocalLayout::size).size;
}

std::vector<LocalMatrices> JoinedMatrices::matrices_of(int rank) const {
  std::vector<LocalMatrices> matrices;
  for (const auto& [box, offset, stride] : wholes.ranks[static_cast<std::size_t>(rank)].pieces) {
    if (matrices.empty() || matrices.back().rows != box.rows || matrices.back().cols != box.cols)
      matrices.push_back({.rows = box.rows, .cols = box.cols, .offset = offset, .stride = aligned(box.elements())});
    ++matrices.back().count;
  }
  return matrices;
}

// One matrix. `box` is in the stack of the parameters. `candidates` are ranks of the group.
struct MatrixPlan::Task {
  layout::Box box;
  std::span<const int> candidates;
};

MatrixPlan::MatrixPlan(const RankLayout& layout, int rank, bool zero, Flops flops)
    : layout_(layout),
      zero_(zero),
      flops_(std::move(flops)),
      transfer_(is_split(layout, rank, zero) ? Transfer::replica_matrices : Transfer::matrices),
      group_(group_with(layout, rank, transfer_)),
      own_(static_cast<int>(std::ranges::find(group_, rank) - group_.begin())),
      ranks_(static_cast<int>(group_.size())) {}

// Returns the state part of each rank of the group.
const std::vector<layout::LocalLayout>& MatrixPlan::states_of(const ParameterSpec& named) {
  ParameterSpec spec = named;
  spec.name.clear();
  const auto found = std::ranges::find(known_, spec, &decltype(known_)::value_type::first);
  if (found != known_.end()) return found->second;
  const Domain& domain = layout_.domains[static_cast<std::size_t>(spec.domain)];
  std::map<std::pair<int, Slots>, ParameterLayouts> layouts;  // by replica and slots of the compute group
  std::vector<layout::LocalLayout> states;
  for (const int rank : group_) {
    Cuts cuts = cuts_of(layout_.mesh, domain, rank);
    cuts.zero = zero_;
    std::pair<int, Slots> key(0, {});
    if (cuts.any_reduced())
      key = {cuts.replica, compute_group_of(layout_.mesh, domain, layout_.domains.front(), rank).slots};
    auto known = layouts.find(key);
    if (known == layouts.end()) {
      if (cuts.any_reduced()) spec.compute = spec.compute_by_slots.at(key.second);
      known = layouts.emplace(key, layouts_of(spec, cuts)).first;
    }
    states.push_back(rank_parts(known->second, cuts, place_of(layout_.mesh, domain, rank)).local_state);
  }
  spec.compute = named.compute;
  return known_.emplace_back(std::move(spec), std::move(states)).second;
}

// Returns the layout of the states, and appends the matrices to `tasks`.
JoinedMatrices MatrixPlan::join(std::span<const MatrixParameter> parameters, std::vector<Task>& tasks) {
  JoinedMatrices joined{.type = parameters.front().type};
  joined.states.ranks.resize(group_.size());
  layout::Shape& shape = joined.states.shape;
  for (const MatrixParameter& parameter : parameters) {
    const std::vector<layout::LocalLayout>& states = states_of(*parameter.spec);
    const std::vector<MatrixBlock> matrices = matrix_blocks(*parameter.spec);
    std::vector<std::vector<int>> candidates(matrices.size());
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      layout::LocalLayout& local = joined.states.ranks[rank];
      const std::int64_t offset = aligned(local.size);
      if (static_cast<int>(rank) == own_) joined.state_offsets.push_back(offset);
      for (layout::Piece piece : states[rank].pieces) {
        auto matrix = std::ranges::upper_bound(matrices, piece.box.row, {},
                                               [](const MatrixBlock& m) { return m.box.row + m.box.rows; });
        for (; matrix != matrices.end() && matrix->box.row < piece.box.row + piece.box.rows; ++matrix) {
          std::vector<int>& of_matrix = candidates[static_cast<std::size_t>(matrix - matrices.begin())];
          if (of_matrix.empty() || of_matrix.back() != static_cast<int>(rank))
            of_matrix.push_back(static_cast<int>(rank));
        }
        piece.box.row += shape.rows;
        piece.offset += offset;
        local.pieces.push_back(piece);
      }
      local.size = offset + states[rank].size;
    }
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      layout::Box box = matrices[i].box;
      box.row += shape.rows;
      tasks.push_back({.box = box, .candidates = *candidates_.insert(std::move(candidates[i])).first});
    }
    const layout::Shape own = layout::matrix_shape(parameter.spec->dims);
    shape = {.rows = shape.rows + own.rows, .cols = std::max(shape.cols, own.cols)};
    joined.ids.push_back(parameter.id);
  }
  return joined;
}

// Sets the layout of the whole matrices. `ranks`: the matrix rank of each task. A rank's matrices are ordered by shape,
// so that equal shapes can be computed together.
void MatrixPlan::place(JoinedMatrices& joined, const std::vector<Task>& tasks, std::span<const int> ranks) const {
  joined.wholes = {.shape = joined.states.shape, .ranks = std::vector<layout::LocalLayout>(group_.size())};
  joined.flops.resize(group_.size());
  std::vector<std::size_t> order(tasks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return std::pair(tasks[i].box.rows, tasks[i].box.cols); });
  for (const std::size_t i : order) {
    const layout::Box& box = tasks[i].box;
    layout::LocalLayout& local = joined.wholes.ranks[static_cast<std::size_t>(ranks[i])];
    const std::int64_t offset = aligned(local.size);
    local.pieces.push_back({.box = box, .offset = offset, .stride = box.cols});
    local.size = offset + box.elements();
    joined.flops[static_cast<std::size_t>(ranks[i])] += flops_(box.rows, box.cols);
  }
  joined.own = joined.matrices_of(own_);
}

std::vector<JoinedMatrices> MatrixPlan::add(std::span<const MatrixParameter> bucket) {
  std::vector<quant::DType> types;
  for (const MatrixParameter& parameter : bucket)
    if (std::ranges::find(types, parameter.type) == types.end()) types.push_back(parameter.type);
  std::vector<JoinedMatrices> all;
  std::vector<std::vector<Task>> tasks(types.size());
  std::vector<MatrixWork> work;
  for (std::size_t t = 0; t < types.size(); ++t) {
    std::vector<MatrixParameter> of_type;
    std::ranges::copy_if(bucket, std::back_inserter(of_type),
                         [&](const MatrixParameter& parameter) { return parameter.type == types[t]; });
    all.push_back(join(of_type, tasks[t]));
    for (const Task& task : tasks[t]) work.push_back({flops_(task.box.rows, task.box.cols), task.candidates});
  }
  const std::vector<int> ranks = ranks_.assign(work);
  auto next = ranks.begin();
  for (std::size_t t = 0; t < types.size(); ++t) {
    place(all[t], tasks[t], {next, tasks[t].size()});
    next += static_cast<std::ptrdiff_t>(tasks[t].size());
    all[t].gathered_bytes = most_received(all[t].states, all[t].wholes, types[t]);
    all[t].scattered_bytes = most_received(all[t].wholes, all[t].states, types[t]);
  }
  return all;
}

}  // namespace tessera::shard
