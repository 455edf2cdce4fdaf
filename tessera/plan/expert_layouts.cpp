#include "tessera/plan/expert_layouts.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/nn/mesh_degrees.h"
#include "tessera/schedule/way_costs.h"

namespace tessera::plan {
namespace {

using mesh::Transfer;
using schedule::Event, schedule::EventKind;

bool is_expert(const predict::PlannedParameter& parameter) {
  return parameter.size.domain == nn::kExpertDomain;
}

// Returns the number of sparse layers. Every sparse layer has one parameter that equals the first parameter of experts
// except for the name.
double sparse_layers(const predict::DryStep& dry) {
  const auto first = std::ranges::find(dry.parameters, nn::kExpertDomain, &shard::ParameterSpec::domain);
  return static_cast<double>(std::ranges::count_if(dry.parameters, [&](const shard::ParameterSpec& spec) {
    return spec.domain == first->domain && spec.dims == first->dims;
  }));
}

// A pass gathers each weight once. A recomputed pass directly precedes the backward pass of its layer. The two passes
// share one gather.
double weights_seconds(const predict::CostInput& input, const predict::DryStep& dry,
                       const std::vector<predict::PlannedParameter>& parameters, bool trains) {
  const schedule::Trace trace = dry.trace(1);
  schedule::Schedule each;  // a schedule in which each parameter is a separate unit
  std::vector<std::size_t> members;
  for (std::size_t id = 0; id < parameters.size(); ++id) {
    if (!is_expert(parameters[id])) continue;
    members.push_back(id);
    each.gather_units.push_back({static_cast<schedule::ParameterId>(id)});
    each.gather_domains.push_back(nn::kExpertDomain);
  }
  each.reduce_units = each.gather_units;
  each.reduce_domains = each.gather_domains;
  schedule::Costs costs;
  set_transfer_costs(input, trace, parameters, each, costs);
  double seconds = 0;
  for (std::size_t unit = 0; unit < members.size(); ++unit) {
    const auto of = [&](Transfer hop) { return costs.seconds[hop][unit]; };
    seconds += (trains ? 2 : 1) * (of(Transfer::gather) + of(Transfer::gather_compute));
    if (trains) seconds += of(Transfer::reduce) + of(Transfer::reduce_compute);
  }
  return seconds;
}

double tokens_seconds(const shard::Domain& domain, const schedule::Trace& trace, const schedule::Costs& costs) {
  double seconds = 0;
  for (std::size_t event = 0; event < trace.size(); ++event)
    if (trace[event].kind == EventKind::comm && trace[event].group == program_name(domain))
      seconds += costs.comm_seconds[event];
  return seconds;
}

ExpertLayout layout_of(StepPlanRequest request, std::int64_t ep, std::int64_t egtp) {
  nn::MeshDegrees degrees = request.run.degrees();
  degrees.experts->ep = static_cast<int>(ep), degrees.experts->egtp = static_cast<int>(egtp);
  request.run = request.run.on(degrees);
  const predict::DryOptions options = dry_options_of(request);
  const predict::DryStep dry = dry_step(options);
  const std::vector<predict::PlannedParameter> parameters = planned_parameters(dry, options.step.types);
  const predict::CostInput input = cost_input_of(request, options);
  const schedule::Trace trace = dry.trace(1);
  const predict::StepCosts costs = event_costs(input, dry, trace, parameters);
  const double layers = sparse_layers(dry);
  const bool trains = request.kind == schedule::StepKind::train;
  const shard::Domain& domain = options.step.layout.domains[nn::kExpertDomain];
  return {.etp = degrees.experts->etp,
          .ep = ep,
          .egtp = egtp,
          .products_seconds = costs.expert_products / layers,
          .weights_seconds = weights_seconds(input, dry, parameters, trains) / layers,
          .tokens_seconds = tokens_seconds(domain, trace, costs.costs) / layers};
}

std::string name_of(const ExpertLayout& layout) {
  return fmt::format("--ep {} --egtp {}", layout.ep, layout.egtp);
}

}  // namespace

double ExpertLayout::exposed_weights_seconds() const {
  return std::max(0.0, weights_seconds - products_seconds);
}

std::vector<ExpertLayout> expert_layouts(const StepPlanRequest& request) {
  const settings::ResolvedRun& run = request.run;
  std::vector<ExpertLayout> layouts;
  const std::int64_t experts = run.model()->sizes().num_experts, ranks = run->mesh.tp * run->mesh.gtp / run->mesh.etp;
  for (std::int64_t ep = 1; ep <= std::min(experts, ranks); ++ep)
    if (ranks % ep == 0 && run->mesh.etp * ep % run->mesh.tp == 0)
      layouts.push_back(layout_of(request, ep, ranks / ep));
  return layouts;
}

std::size_t best_layout(const std::vector<ExpertLayout>& layouts) {
  return static_cast<std::size_t>(std::ranges::min_element(layouts, {}, &ExpertLayout::total_seconds) -
                                  layouts.begin());
}

std::string reason_for(const std::vector<ExpertLayout>& layouts) {
  const ExpertLayout& best = layouts[best_layout(layouts)];
  const auto milliseconds = [](double seconds) { return fmt::format("{:.3g} ms", seconds * 1e3); };
  std::string text = fmt::format("{}: ", name_of(best));
  if (best.egtp == 1)
    text += "no weights travel";
  else if (best.exposed_weights_seconds() > 0)
    text += fmt::format("weights travel {}, which is {} longer than the products", milliseconds(best.weights_seconds),
                        milliseconds(best.exposed_weights_seconds()));
  else
    text += fmt::format("weights travel {}, hidden by products of {}", milliseconds(best.weights_seconds),
                        milliseconds(best.products_seconds));
  text += best.tokens_seconds > 0 ? fmt::format("; tokens travel {}", milliseconds(best.tokens_seconds))
                                  : std::string("; no tokens travel");
  if (layouts.size() == 1) return text;
  // Compares the best layout with the layout at the other end of the table.
  const ExpertLayout& other = &best == &layouts.front() ? layouts.back() : layouts.front();
  return text + fmt::format(". With {}, compute waits {} for weights and {} for tokens", name_of(other),
                            milliseconds(other.exposed_weights_seconds()), milliseconds(other.tokens_seconds));
}

}  // namespace tessera::plan
