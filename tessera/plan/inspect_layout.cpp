#include "tessera/plan/inspect_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "tessera/predict/dry_step.h"
#include "tessera/quant/formats/columnwise.h"
#include "tessera/settings/inspect_places.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/shard/formats/encoded.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/sizes.h"
#include "tessera/shard/ways/way_bytes.h"

namespace tessera::plan {
namespace {

using mesh::Transfer;
using nlohmann::ordered_json;

// Roles, and the groups of ranks of each.
using GroupTable = std::vector<std::pair<mesh::Role, std::vector<std::vector<int>>>>;

// Returns the roles of a run, each once: the roles of all ways of all domains, then the other roles.
GroupTable group_table(const shard::RankLayout& layout) {
  const mesh::Mesh& mesh = layout.mesh;
  GroupTable table;
  const auto add = [&](const shard::Domain& domain, Transfer transfer) {
    const mesh::Role role = role_of(mesh, domain, transfer);
    if (std::ranges::find(table, role, &GroupTable::value_type::first) == table.end())
      table.emplace_back(role, groups_of(mesh, domain, transfer));
  };
  for (const shard::Domain& domain : layout.domains)
    for (const Transfer transfer : {Transfer::gather, Transfer::gather_compute, Transfer::demand, Transfer::rows,
                                    Transfer::reduce_compute, Transfer::reduce, Transfer::replicas})
      add(domain, transfer);
  for (const shard::Domain& domain : layout.domains) add(domain, Transfer::program);
  for (const Transfer transfer : {Transfer::losses, Transfer::norm, Transfer::agreement, Transfer::casts})
    add(layout.domains.front(), transfer);
  return table;
}

ordered_json boxes_of(const layout::LocalLayout& local) {
  ordered_json boxes = ordered_json::array();
  for (const layout::Piece& piece : local.pieces)
    boxes.push_back({piece.box.row, piece.box.row + piece.box.rows, piece.box.col, piece.box.col + piece.box.cols});
  return boxes;
}

// One parameter on all ranks.
class ParameterRanks {
 public:
  ParameterRanks(const shard::ParameterSpec& spec, const shard::ParameterTypes& types, const ops::UpdateRule& rule)
      : spec_(spec), types_(types), rule_(rule), planes_(shard::planes_of(spec, types)) {}

  // Adds the next rank.
  void add(const shard::Cuts& cuts, const shard::Place& place) {
    const auto rank = static_cast<int>(storage_bytes_.size());
    const LayoutsOfGroup& layouts = layouts_in(cuts, place);
    std::int64_t stored = 0, computed = 0;
    for (std::size_t i = 0; i < planes_.size(); ++i) {
      const shard::RankParts parts = rank_parts(layouts.planes[i], cuts, place);
      stored += planes_[i].bytes(parts.local_storage.size);
      computed += planes_[i].bytes(parts.local_compute.size);
    }
    storage_bytes_.push_back(stored);
    compute_bytes_.push_back(computed);
    const shard::RankParts parts = rank_parts(layouts.weight, cuts, place);
    columnwise_bytes_.push_back(
        reads_columnwise(spec_)
            ? quant::columnwise_layout(*spec_.encoding, shard::extent_of(parts.local_compute)).bytes()
            : 0);
    state_bytes_.push_back(bytes_of_state(cuts, parts.local_state.size));
    const shard::Ways ways = ways_in(layouts, cuts, place).at(place);
    gather_bytes_.push_back(total_bytes(ways.gather));
    reduce_bytes_.push_back(total_bytes(ways.reduce));
    replica_bytes_.push_back(total_bytes(ways.replicas) + total_bytes(ways.publish));
    ordered_json boxes{{"storage", boxes_of(parts.local_storage)},
                       {"compute", boxes_of(parts.local_compute)},
                       {"state", spec_.trainable ? boxes_of(parts.local_state) : ordered_json::array()}};
    std::vector<int>& equal_ranks = ranks_[boxes.dump()];
    equal_ranks.push_back(rank);
    if (equal_ranks.size() == 1) parts_.push_back(std::move(boxes));
  }

  ordered_json json() const {
    ordered_json types = ordered_json::array(), parts = ordered_json::array();
    for (const shard::PlaneSpec& plane : planes_) types.push_back(std::string(name_of(plane.type)));
    for (const ordered_json& boxes : parts_) {
      ordered_json part{{"ranks", ranks_.at(boxes.dump())}};
      part.update(boxes);
      parts.push_back(std::move(part));
    }
    return {{"name", ""},
            {"shape", spec_.dims},
            {"domain", spec_.domain},
            {"types", types},
            {"storage_bytes", storage_bytes_},
            {"compute_bytes", compute_bytes_},
            {"columnwise_bytes", columnwise_bytes_},
            {"state_bytes", state_bytes_},
            {"gather_bytes", gather_bytes_},
            {"reduce_bytes", reduce_bytes_},
            {"replica_bytes", replica_bytes_},
            {"parts", parts}};
  }

 private:
  struct LayoutsOfGroup {
    shard::ParameterSpec spec;
    shard::ParameterLayouts weight;
    std::vector<shard::ParameterLayouts> planes;
  };
  // Returns the layouts of the rank's compute group in its replica.
  const LayoutsOfGroup& layouts_in(const shard::Cuts& cuts, const shard::Place& place) {
    const bool differ = cuts.any_reduced();
    const auto key = differ ? std::pair(cuts.replica, place.part) : std::pair(0, 0);
    const auto found = layouts_.find(key);
    if (found != layouts_.end()) return found->second;
    shard::ParameterSpec own = spec_;
    if (differ) own.compute = spec_.compute_by_slots.at(cuts.own_shape()[static_cast<std::size_t>(place.part)]);
    LayoutsOfGroup made{.spec = std::move(own), .weight = {}, .planes = {}};
    made.weight = shard::layouts_of(made.spec, cuts);
    for (const shard::PlaneSpec& plane : planes_) made.planes.push_back(plane_layouts(made.spec, plane, made.weight));
    return layouts_.emplace(key, std::move(made)).first->second;
  }
  // Returns the bytes of the ways of the rank's replica and compute group.
  const shard::WayBytes& ways_in(const LayoutsOfGroup& layouts, const shard::Cuts& cuts, const shard::Place& place) {
    const std::pair key(cuts.shapes.empty() ? 0 : cuts.replica, cuts.any_reduced() ? place.part : 0);
    const auto found = ways_.find(key);
    if (found != ways_.end()) return found->second;
    const bool by_rows = exchanges_rows(layouts.spec, layouts.weight, types_, cuts);
    return ways_.try_emplace(key, layouts.spec, layouts.weight, types_, cuts, by_rows).first->second;
  }
  // Returns the bytes of the master and of the rule's state for this number of elements.
  std::int64_t bytes_of_state(const shard::Cuts& cuts, std::int64_t elements) const {
    if (!spec_.trainable) return 0;
    return shard::master_bytes(spec_, types_, cuts, elements) + ops::state_bytes(rule_, elements, types_.accumulator);
  }

  const shard::ParameterSpec& spec_;
  shard::ParameterTypes types_;
  const ops::UpdateRule& rule_;
  // Key: replica and part if compute groups differ, otherwise zeros.
  std::map<std::pair<int, int>, LayoutsOfGroup> layouts_;
  std::vector<shard::PlaneSpec> planes_;
  // Key: replica and part if replicas or compute groups differ, otherwise zeros.
  std::map<std::pair<int, int>, shard::WayBytes> ways_;
  std::vector<std::int64_t> storage_bytes_, compute_bytes_, columnwise_bytes_, state_bytes_, gather_bytes_,
      reduce_bytes_, replica_bytes_;
  std::vector<ordered_json> parts_;                // different parts, in the order of ranks
  std::map<std::string, std::vector<int>> ranks_;  // key: text of the parts; value: the ranks that have these parts
};

// A domain as one rank sees it.
struct RankInDomain {
  shard::Cuts cuts;
  shard::Place place;
};

std::vector<RankInDomain> ranks_in(const predict::DryOptions& options, std::size_t number) {
  std::vector<RankInDomain> ranks;
  const mesh::Mesh& mesh = options.step.layout.mesh;
  const shard::Domain& domain = options.step.layout.domains[number];
  for (int rank = 0; rank < mesh.world_size(); ++rank)
    ranks.push_back(
        {with_options(cuts_of(mesh, domain, rank), options.step.runtime, number), place_of(mesh, domain, rank)});
  return ranks;
}

// Parameters that differ only in their names are computed once.
ordered_json parameters_of(const predict::DryOptions& options) {
  std::vector<std::vector<RankInDomain>> by_domain;
  for (std::size_t domain = 0; domain < options.step.layout.domains.size(); ++domain)
    by_domain.push_back(ranks_in(options, domain));
  struct Known {
    shard::ParameterSpec spec;  // without its name
    const ops::UpdateRule* rule = nullptr;
    std::size_t place = 0;  // in `parameters`
  };
  std::vector<Known> known;
  ordered_json parameters = ordered_json::array();
  for (shard::ParameterSpec spec : dry_step(options).parameters) {
    const std::string name = std::exchange(spec.name, {});
    const ops::UpdateRule& rule = options.update->rule_of(name);
    const auto found =
        std::ranges::find_if(known, [&](const Known& other) { return other.spec == spec && other.rule == &rule; });
    if (found != known.end()) {
      parameters.push_back(parameters[found->place]);
    } else {
      known.push_back({spec, &rule, parameters.size()});
      ParameterRanks ranks(spec, shard::types_of(spec, options.step.types), rule);
      for (const RankInDomain& rank : by_domain[static_cast<std::size_t>(spec.domain)])
        ranks.add(rank.cuts, rank.place);
      parameters.push_back(ranks.json());
    }
    parameters.back()["name"] = name;
  }
  return parameters;
}

ordered_json sum_of(const ordered_json& parameters, const char* key, int ranks) {
  std::vector<std::int64_t> sums(static_cast<std::size_t>(ranks), 0);
  for (const ordered_json& parameter : parameters)
    for (std::size_t rank = 0; rank < sums.size(); ++rank) sums[rank] += parameter[key][rank].get<std::int64_t>();
  return sums;
}

std::string box_text(const ordered_json& boxes) {
  std::vector<std::string> texts;
  for (const ordered_json& box : boxes)
    texts.push_back(fmt::format("{}:{} x {}:{}", box[0].get<std::int64_t>(), box[1].get<std::int64_t>(),
                                box[2].get<std::int64_t>(), box[3].get<std::int64_t>()));
  return texts.empty() ? "-" : fmt::format("{}", fmt::join(texts, ", "));
}

std::string role_text(const ordered_json& role, std::size_t max_groups) {
  const auto groups = role["groups"].get<std::vector<std::vector<int>>>();
  std::string text = fmt::format("  {:<28}", role["role"].get<std::string>());
  for (std::size_t i = 0; i < std::min(groups.size(), max_groups); ++i)
    text += fmt::format(" [{}]", fmt::join(groups[i], " "));
  if (groups.size() > max_groups) text += fmt::format(" and {} more", groups.size() - max_groups);
  return text + "\n";
}

std::string table_of_bytes(const ordered_json& inspected) {
  constexpr std::array kKinds{"storage", "compute", "state", "gather", "reduce", "replica"};
  std::string text =
      "\nall parameters, bytes: stored and computed with; received by one gather and one reduction, and over "
      "replicas\n  "
      "  rank";
  for (const char* kind : kKinds) text += fmt::format(" {:>15}", kind);
  for (std::size_t rank = 0; rank < inspected["storage_bytes"].size(); ++rank) {
    text += fmt::format("\n  {:>6}", rank);
    for (const char* kind : kKinds)
      text += fmt::format(" {:>15}", inspected[fmt::format("{}_bytes", kind)][rank].get<std::int64_t>());
  }
  return text + "\n";
}

std::string parameter_text(const ordered_json& parameter) {
  std::string text = fmt::format("\n{} [{}] {}\n", parameter["name"].get<std::string>(),
                                 fmt::join(parameter["shape"].get<std::vector<std::int64_t>>(), ", "),
                                 fmt::join(parameter["types"].get<std::vector<std::string>>(), " + "));
  for (const ordered_json& part : parameter["parts"]) {
    const auto ranks = part["ranks"].get<std::vector<std::size_t>>();
    const auto bytes = [&](const char* key) { return parameter[key][ranks.front()].get<std::int64_t>(); };
    text += fmt::format("  ranks {}\n", fmt::join(ranks, " "));
    for (const char* kind : {"storage", "compute", "state"})
      text += fmt::format("    {:<8} {:>14} bytes  {}\n", kind, bytes(fmt::format("{}_bytes", kind).c_str()),
                          box_text(part[kind]));
  }
  return text;
}

}  // namespace

ordered_json inspect_layout(const settings::ResolvedRun& run) {
  const predict::DryOptions options = settings::dry_options(run, {});
  const shard::RankLayout& layout = options.step.layout;
  const int ranks = layout.mesh.world_size();
  ordered_json grids = ordered_json::array(), domains = ordered_json::array(), roles = ordered_json::array();
  for (const mesh::Grid& grid : layout.mesh.grids()) {
    grids.push_back(ordered_json::array());
    for (const mesh::Axis& axis : grid) grids.back().push_back({{"axis", axis.name}, {"size", axis.size}});
  }
  for (const shard::Domain& domain : layout.domains)
    domains.push_back({{"compute", domain.compute},
                       {"storage", domain.storage},
                       {"duplicates", domain.duplicates},
                       {"replicas", domain.replicas}});
  for (const auto& [role, groups] : group_table(layout))
    roles.push_back({{"role", to_string(role)}, {"groups", groups}});
  const ordered_json parameters = parameters_of(options);
  const ordered_json places = run.has_unused_places() ? settings::inspect_places(run) : ordered_json();
  return {{"model", run->model},
          {"ranks", ranks},
          {"places", places},
          {"grids", grids},
          {"domains", domains},
          {"roles", roles},
          {"parameters", parameters},
          {"storage_bytes", sum_of(parameters, "storage_bytes", ranks)},
          {"compute_bytes", sum_of(parameters, "compute_bytes", ranks)},
          {"columnwise_bytes", sum_of(parameters, "columnwise_bytes", ranks)},
          {"state_bytes", sum_of(parameters, "state_bytes", ranks)},
          {"gather_bytes", sum_of(parameters, "gather_bytes", ranks)},
          {"reduce_bytes", sum_of(parameters, "reduce_bytes", ranks)},
          {"replica_bytes", sum_of(parameters, "replica_bytes", ranks)}};
}

std::string layout_text(const ordered_json& inspected, std::size_t max_groups) {
  std::string text = fmt::format("{}: {} ranks\n\ngrids, fastest axis first\n", inspected["model"].get<std::string>(),
                                 inspected["ranks"].get<int>());
  for (const ordered_json& grid : inspected["grids"]) {
    std::vector<std::string> axes;
    for (const ordered_json& axis : grid)
      axes.push_back(fmt::format("{} {}", axis["axis"].get<std::string>(), axis["size"].get<int>()));
    text += fmt::format("  {}\n", fmt::join(axes, " x "));
  }
  if (!inspected["places"].is_null()) text += settings::places_text(inspected["places"]);
  text += "\ngroups of ranks\n";
  for (const ordered_json& role : inspected["roles"]) text += role_text(role, max_groups);
  text += "\nparts as rows x columns: storage lasts between uses, compute is gathered, state is updated\n";
  for (const ordered_json& parameter : inspected["parameters"]) text += parameter_text(parameter);
  return text + table_of_bytes(inspected);
}

}  // namespace tessera::plan
