#include "tessera/runtime/parameter_table.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/sizes.h"

namespace tessera::runtime {

using schedule::ParameterId;

ParameterTable::ParameterTable(const shard::RankLayout& layout, int rank, const shard::ParameterTypes& types,
                               const RuntimeOptions& options, Added added)
    : ranks_(layout.mesh.world_size()), types_(types), options_(options), added_(std::move(added)) {
  TESSERA_CHECK(!layout.domains.empty(), "expected a mesh with at least one domain, got none");
  for (const shard::Domain& domain : layout.domains) {
    cuts_.push_back(with_options(cuts_of(layout.mesh, domain, rank), options, cuts_.size()));
    domains_.push_back({.place = place_of(layout.mesh, domain, rank),
                        .compute = compute_group_of(layout.mesh, domain, layout.domains.front(), rank),
                        .program = program_name(domain)});
  }
}

ParameterId ParameterTable::add(shard::ParameterSpec spec) {
  TESSERA_CHECK(!is_closed_, "parameter '{}' is added after the first step began", spec.name);
  TESSERA_CHECK(weights_ < 0, "parameter '{}' is added after the backward weights", spec.name);
  return register_parameter(with_options(std::move(spec), types_, options_));
}

void ParameterTable::add_backward_weights() {
  TESSERA_CHECK(!is_closed_, "backward weights are added after the first step began");
  TESSERA_CHECK(weights_ < 0, "backward weights are added twice");
  weights_ = size();
  for (ParameterId id = 0; id < weights_; ++id) {
    if (!spec(id).backward) continue;
    const ParameterId backward_weight = register_parameter(shard::backward_weight(shard::ParameterSpec(spec(id))));
    traits_[index(id)].backward_weight = backward_weight;
  }
}

void ParameterTable::close() {
  for (const shard::ParameterSpec& spec : specs_)
    TESSERA_CHECK(weights_ >= 0 || !spec.backward,
                  "'{}' has another format in backward passes: add_backward_weights is missing", spec.name);
  is_closed_ = true;
}

ParameterId ParameterTable::register_parameter(shard::ParameterSpec spec) {
  const auto id = static_cast<ParameterId>(specs_.size());
  domain_index(spec.domain);  // throws if the domain does not exist
  TESSERA_CHECK(ids_.emplace(spec.name, id).second, "parameter '{}' is added twice", spec.name);
  specs_.push_back(std::move(spec));
  try {
    if (added_) added_(id);
    traits_.push_back(traits_of(specs_.back()));
  } catch (...) {
    ids_.erase(specs_.back().name);
    specs_.pop_back();
    throw;
  }
  return id;
}

ParameterTable::Traits ParameterTable::traits_of(const shard::ParameterSpec& spec) const {
  const shard::ParameterTypes& types = types_of(spec, types_);
  const shard::Cuts& cuts = this->cuts(spec.domain);
  const shard::ParameterLayouts layouts = layouts_of(spec, cuts);
  Traits traits{.staging = types.accumulator};
  traits.by_rows = exchanges_rows(spec, layouts, types, cuts);
  traits.row_gradients = has_row_gradients(spec, layouts, types, cuts);
  if (traits.by_rows) traits.row_bytes = messages_of(spec, layouts, cuts.parts).exchanged(types.model);
  if (!traits.by_rows && !traits.row_gradients)
    traits.staging = shard::staging_type(spec, types, sums_compute(spec, layouts));
  return traits;
}

std::vector<std::string> ParameterTable::names() const {
  std::vector<std::string> names;
  for (const shard::ParameterSpec& spec : specs_) names.push_back(spec.name);
  return names;
}

const layout::LocalLayout& ParameterTable::local_compute(ParameterId id) const {
  const shard::ParameterSpec& spec = this->spec(id);
  const shard::Place& place = domains_[domain_index(spec.domain)].place;
  return spec.compute.ranks.at(static_cast<std::size_t>(place.compute));
}

std::vector<schedule::ParameterSize> ParameterTable::sizes() const {
  std::vector<schedule::ParameterSize> sizes;
  for (const shard::ParameterSpec& spec : specs_) {
    const shard::Cuts& cuts = this->cuts(spec.domain);
    sizes.push_back(parameter_size(spec, layouts_of(spec, cuts), types_of(spec, types_), cuts));
  }
  return sizes;
}

std::vector<ParameterId> ParameterTable::by_name() const {
  std::vector<ParameterId> order(static_cast<std::size_t>(weights()));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [this](ParameterId id) -> const std::string& { return name(id); });
  return order;
}

ParameterId ParameterTable::backward_weight(ParameterId weight) const {
  TESSERA_CHECK(weight >= 0 && weight < weights(), "weight {} of {}", weight, weights());
  return traits_[index(weight)].backward_weight;
}

std::vector<ParameterId> ParameterTable::backward_weights() const {
  std::vector<ParameterId> backward_weights;
  for (ParameterId id = 0; id < weights(); ++id) backward_weights.push_back(backward_weight(id));
  return backward_weights;
}

ParameterId ParameterTable::read_in(schedule::Pass pass, ParameterId weight) const {
  const ParameterId other = backward_weight(weight);
  return pass == schedule::Pass::backward && other != schedule::kNoParameter ? other : weight;
}

std::vector<ParameterId> ParameterTable::with_backward_weights(std::span<const ParameterId> weights) const {
  std::vector<ParameterId> all;
  for (const ParameterId id : weights) {
    all.push_back(id);
    if (const ParameterId other = backward_weight(id); other != schedule::kNoParameter) all.push_back(other);
  }
  return all;
}

std::size_t ParameterTable::index(ParameterId id) const {
  TESSERA_CHECK(id >= 0 && id < size(), "parameter {} of {}", id, size());
  return static_cast<std::size_t>(id);
}

std::size_t ParameterTable::domain_index(int domain) const {
  TESSERA_CHECK(domain >= 0 && static_cast<std::size_t>(domain) < domains_.size(), "domain {} of {}", domain,
                domains_.size());
  return static_cast<std::size_t>(domain);
}

}  // namespace tessera::runtime
