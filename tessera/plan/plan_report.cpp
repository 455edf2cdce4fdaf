#include "tessera/plan/plan_report.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "tessera/nn/mesh_degrees.h"
#include "tessera/plan/expert_layouts.h"
#include "tessera/predict/model_flops.h"
#include "tessera/predict/recompute_choice.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::plan {
namespace {

using nlohmann::ordered_json;

std::string weights_text(const schedule::Unit& unit, const StepPlan& step) {
  std::vector<std::string> names;
  for (const schedule::ParameterId id : unit) names.push_back(step.parameters[static_cast<std::size_t>(id)].size.name);
  return fmt::format("{}", fmt::join(names, " + "));
}

const schedule::Unit& unit_of(const std::vector<schedule::Unit>& units, int unit) {
  return units[static_cast<std::size_t>(unit)];
}

double tokens_of(const StepPlanRequest& request) {
  return static_cast<double>(request.run.tokens());
}

ordered_json traffic_json(const Traffic& traffic) {
  return {{"gathered_bytes", traffic.gathered}, {"reduced_bytes", traffic.reduced}};
}

std::string_view kind_of(int domain) {
  return domain == nn::kExpertDomain ? "experts" : "dense";
}

ordered_json lasting_json(const LastingBytes& bytes) {
  return {{"weights", bytes.weights},
          {"gradients", bytes.gradients},
          {"masters", bytes.masters},
          {"moments", bytes.moments},
          {"total", bytes.total()}};
}

ordered_json kinds_json(const StepPlanRequest& request, const MemoryUse& memory) {
  ordered_json kinds{{"dense", lasting_json(memory.dense)}};
  if (request.run.has_experts()) kinds["experts"] = lasting_json(memory.experts);
  return kinds;
}

ordered_json roles_json(const StepPlan& step) {
  ordered_json roles = ordered_json::array();
  for (const RoleBytes& role : step.roles)
    roles.push_back(
        {{"parameters", kind_of(role.domain)}, {"purpose", role.purpose}, {"over", role.over}, {"bytes", role.bytes}});
  return roles;
}

ordered_json experts_json(const StepPlanRequest& request, const MemoryUse& memory) {
  const std::vector<ExpertLayout> layouts = expert_layouts(request);
  ordered_json table = ordered_json::array();
  for (const ExpertLayout& layout : layouts)
    table.push_back({{"etp", layout.etp},
                     {"ep", layout.ep},
                     {"egtp", layout.egtp},
                     {"products_ms", layout.products_seconds * 1e3},
                     {"weights_ms", layout.weights_seconds * 1e3},
                     {"tokens_ms", layout.tokens_seconds * 1e3},
                     {"total_ms", layout.total_seconds() * 1e3}});
  ordered_json report{{"load", request.expert_load},
                      {"layouts", std::move(table)},
                      {"recommended", nullptr},
                      {"reason", "the plan does not fit"}};
  if (!fits(memory, request)) return report;
  const ExpertLayout& best = layouts[best_layout(layouts)];
  report["recommended"] = {{"etp", best.etp}, {"ep", best.ep}, {"egtp", best.egtp}};
  report["reason"] = reason_for(layouts);
  return report;
}

double mfu(const StepPlanRequest& request, const schedule::Prediction& p) {
  return predict::mfu_of(settings::model_flops(request.run, request.kind), p.step_seconds, request.run->mesh.ranks,
                         request.machine.flops.at(request.run->dtype));
}

ordered_json predicted_json(const StepPlanRequest& request, const StepPlan& step) {
  const schedule::Prediction& p = step.prediction;
  const double limit = limit_seconds(request, step.parameters);
  return {{"step_ms", p.step_seconds * 1e3},
          {"compute_ms", p.compute_seconds * 1e3},
          {"exposed_comm_ms", p.exposed_seconds() * 1e3},
          {"exposed_gather_ms", p.gather_exposed_seconds * 1e3},
          {"exposed_reduce_ms", p.reduce_exposed_seconds * 1e3},
          {"exposed_group_ms", step.activations_seconds() * 1e3},
          {"exposed_slowest_ms", step.slowest_rank_seconds() * 1e3},
          {"exposed_ms",
           {{"weights", (p.gather_exposed_seconds + p.reduce_exposed_seconds + step.slowest_rank_seconds()) * 1e3},
            {"tp", step.activations_seconds() * 1e3}}},
          {"limit_ms", limit * 1e3},
          {"limit_ratio", limit / p.step_seconds},
          {"tokens_per_second", tokens_of(request) / p.step_seconds},
          {"mfu", mfu(request, p)}};
}

ordered_json gathers_json(const StepPlan& step) {
  ordered_json gathers = ordered_json::array();
  for (const schedule::Residency& r : step.schedule.residencies) {
    gathers.push_back({{"weights", weights_text(unit_of(step.schedule.gather_units, r.unit), step)},
                       {"issue", r.issue},
                       {"free", r.free},
                       {"wait", r.wait},
                       {"last", r.last},
                       {"offset", r.offset},
                       {"bytes", step.schedule.gather_bytes[static_cast<std::size_t>(r.unit)]}});
    if (!step.schedule.unpacks(r.unit)) continue;
    gathers.back()["unpacked_offset"] = r.unpacked_offset;
    gathers.back()["unpacked_bytes"] = step.schedule.unpacked_bytes[static_cast<std::size_t>(r.unit)];
  }
  return gathers;
}

ordered_json copies_json(const StepPlan& step) {
  ordered_json copies = ordered_json::array();
  for (const schedule::ColumnwiseCopy& copy : step.schedule.copies)
    copies.push_back({{"weights", weights_text(unit_of(step.schedule.gather_units, copy.unit), step)},
                      {"make", copy.make},
                      {"last", copy.last},
                      {"offset", copy.offset},
                      {"bytes", step.schedule.columnwise_bytes[static_cast<std::size_t>(copy.unit)]}});
  return copies;
}

ordered_json reductions_json(const StepPlan& step) {
  ordered_json reductions = ordered_json::array();
  for (const schedule::Reduction& r : step.schedule.reductions)
    reductions.push_back({{"weights", weights_text(unit_of(step.schedule.reduce_units, r.unit), step)},
                          {"microbatch", r.microbatch},
                          {"first", r.first},
                          {"issue", r.issue},
                          {"finish", r.finish},
                          {"replicas", r.replicas},
                          {"offset", r.offset},
                          {"bytes", step.schedule.reduce_bytes[static_cast<std::size_t>(r.unit)]}});
  return reductions;
}

ordered_json mesh_json(const settings::RunMesh& run) {
  ordered_json mesh{{"ranks", run.ranks}};
  for (const auto& [axis, degree] : settings::axes_of(run.degrees)) mesh[axis] = degree;
  return mesh;
}

std::string lasting_text(std::string_view kind, const LastingBytes& bytes) {
  return fmt::format("  {:7} {} = weights {} + gradients {} + masters {} + moments {}\n", kind,
                     bytes_text(bytes.total()), bytes_text(bytes.weights), bytes_text(bytes.gradients),
                     bytes_text(bytes.masters), bytes_text(bytes.moments));
}

std::string roles_text(const StepPlan& step) {
  std::string text;
  for (const RoleBytes& role : step.roles)
    text += fmt::format("  {:7} {:20} {:12} {:>12}\n", kind_of(role.domain), role.purpose, role.over,
                        bytes_text(role.bytes));
  return text;
}

std::string experts_text(const StepPlanRequest& request, const MemoryUse& memory) {
  if (!request.run.has_experts()) return "";
  const std::vector<ExpertLayout> layouts = expert_layouts(request);
  std::string text = fmt::format(
      "\nexperts of a sparse layer and microbatch, ms; load of the busiest owner {:g}\n"
      "{:>6} {:>6} {:>6} {:>10} {:>10} {:>10} {:>10}\n",
      request.expert_load, "etp", "ep", "egtp", "products", "weights", "tokens", "total");
  for (const ExpertLayout& layout : layouts)
    text += fmt::format("{:>6} {:>6} {:>6} {:>10.3f} {:>10.3f} {:>10.3f} {:>10.3f}\n", layout.etp, layout.ep,
                        layout.egtp, layout.products_seconds * 1e3, layout.weights_seconds * 1e3,
                        layout.tokens_seconds * 1e3, layout.total_seconds() * 1e3);
  if (fits(memory, request)) text += fmt::format("recommended {}\n", reason_for(layouts));
  const int edp = request.run.degrees().edp();
  if (edp > 1)
    text +=
        fmt::format("edp {}: {} of experts are stored {} times in a replica; a larger egtp or ep stores them once\n",
                    edp, bytes_text(memory.experts.total()), edp);
  return text;
}

std::string memory_text(const StepPlanRequest& request, const StepPlan& step) {
  const MemoryUse& memory = step.memory;
  std::string text = fmt::format(
      "\npeak memory of a rank: {} = weights {} + gathered {} + gradients {} + optimizer {} + "
      "activations {}{}{}{}\n",
      bytes_text(memory.total()), bytes_text(memory.weights), bytes_text(memory.gathered), bytes_text(memory.gradients),
      bytes_text(memory.optimizer), bytes_text(memory.activations),
      memory.transfers > 0 ? " + transfers in pieces " + bytes_text(memory.transfers) : "",
      memory.matrices > 0 ? " + whole matrices of the update " + bytes_text(memory.matrices) : "",
      memory.overhead > 0 ? " + outside the plan " + bytes_text(memory.overhead) : "");
  text += "kept between steps:\n" + lasting_text("dense", memory.dense);
  if (request.run.has_experts()) text += lasting_text("experts", memory.experts);
  text += "update rules of a rank:\n" + predict::rules_text(step.rules);
  return text + fmt::format("arenas: gathers {}, gradients {}, scratch {}\n", bytes_text(step.schedule.gather_arena),
                            bytes_text(step.schedule.reduce_arena), bytes_text(step.schedule.scratch));
}

std::string time_text(const StepPlanRequest& request, const StepPlan& step) {
  const schedule::Prediction& p = step.prediction;
  const double limit = limit_seconds(request, step.parameters);
  return fmt::format(
      "predicted: step {:.3f} ms = compute {:.3f} + exposed communication {:.3f} (gathers {:.3f}, gradients {:.3f}, "
      "activations {:.3f}, slowest rank {:.3f})\n"
      "limit: {:.3f} ms for the operators' work; limit / step {:.3f}\n"
      "without a schedule: step {:.3f} ms, exposed {:.3f}\n",
      p.step_seconds * 1e3, p.compute_seconds * 1e3, p.exposed_seconds() * 1e3, p.gather_exposed_seconds * 1e3,
      p.reduce_exposed_seconds * 1e3, step.activations_seconds() * 1e3, step.slowest_rank_seconds() * 1e3, limit * 1e3,
      limit / p.step_seconds, step.on_demand.step_seconds * 1e3, step.on_demand.exposed_seconds() * 1e3);
}

std::string more_text(std::size_t count, std::size_t rows) {
  return count > rows ? fmt::format("  ... {} more (--rows)\n", count - rows) : "";
}

std::string gathers_text(const StepPlan& step, std::size_t rows) {
  const auto& residencies = step.schedule.residencies;
  std::string text = fmt::format("\n{:>8} {:>8} {:>8} {:>14} {:>14}  {}\n", "issue", "wait", "last", "offset", "bytes",
                                 "gather, first used by");
  const std::vector<std::string> names = step.names();
  for (std::size_t i = 0; i < std::min(rows, residencies.size()); ++i) {
    const schedule::Residency& r = residencies[i];
    const schedule::Unit& unit = unit_of(step.schedule.gather_units, r.unit);
    const std::string others = unit.size() > 1 ? fmt::format(", with {} more", unit.size() - 1) : "";
    const std::string unpacked =
        step.schedule.unpacks(r.unit)
            ? fmt::format(", unpacked to {} bytes at {}",
                          step.schedule.unpacked_bytes[static_cast<std::size_t>(r.unit)], r.unpacked_offset)
            : std::string();
    text += fmt::format("{:>8} {:>8} {:>8} {:>14} {:>14}  {}{}{}\n", r.issue, r.wait, r.last, r.offset,
                        step.schedule.gather_bytes[static_cast<std::size_t>(r.unit)],
                        to_string(step.trace[static_cast<std::size_t>(r.wait)], names), others, unpacked);
  }
  return text + more_text(residencies.size(), rows);
}

std::string copies_text(const StepPlan& step, std::size_t rows) {
  const auto& copies = step.schedule.copies;
  if (copies.empty()) return "";
  std::string text =
      fmt::format("\n{:>8} {:>8} {:>14} {:>14}  {}\n", "make", "last", "offset", "bytes", "columnwise copy");
  for (std::size_t i = 0; i < std::min(rows, copies.size()); ++i)
    text += fmt::format("{:>8} {:>8} {:>14} {:>14}  {}\n", copies[i].make, copies[i].last, copies[i].offset,
                        step.schedule.columnwise_bytes[static_cast<std::size_t>(copies[i].unit)],
                        weights_text(unit_of(step.schedule.gather_units, copies[i].unit), step));
  return text + more_text(copies.size(), rows);
}

std::string reductions_text(const StepPlan& step, bool has_replicas, std::size_t rows) {
  const auto& reductions = step.schedule.reductions;
  if (reductions.empty()) return "";
  std::string text = fmt::format("\n{:>8} {:>8} {:>8} {:>14} {:>14}  {}\n", "first", "issue", "finish", "offset",
                                 "bytes", "reduction");
  for (std::size_t i = 0; i < std::min(rows, reductions.size()); ++i) {
    const schedule::Reduction& r = reductions[i];
    text += fmt::format("{:>8} {:>8} {:>8} {:>14} {:>14}  mb {} {}{}\n", r.first, r.issue, r.finish, r.offset,
                        step.schedule.reduce_bytes[static_cast<std::size_t>(r.unit)], r.microbatch,
                        weights_text(unit_of(step.schedule.reduce_units, r.unit), step),
                        r.replicas && has_replicas ? ", then replicas" : "");
  }
  return text + more_text(reductions.size(), rows);
}

}  // namespace

ordered_json memory_json(const MemoryUse& memory) {
  return {{"weights", memory.weights},     {"gathered", memory.gathered},       {"gradients", memory.gradients},
          {"optimizer", memory.optimizer}, {"activations", memory.activations}, {"transfers", memory.transfers},
          {"matrices", memory.matrices},   {"overhead", memory.overhead},       {"total", memory.total()}};
}

ordered_json usable_json(const StepPlanRequest& request) {
  return request.machine.memory_bytes > 0 ? ordered_json(usable_bytes(request)) : ordered_json();
}

ordered_json plan_json(const StepPlanRequest& request, const StepPlan& step) {
  const settings::ResolvedRun& run = request.run;
  ordered_json report{
      {"model", run->model},
      {"machine", request.machine.name},
      {"step", name_of(request.kind)},
      {"mesh", mesh_json(run.mesh())},
      {"global_batch", run->global_batch},
      {"microbatches", run.microbatches()},
      {"tokens", run.tokens()},
      {"events", step.trace.size()},
      {"memory_bytes", memory_json(step.memory)},
      {"fits", fits(step.memory, request)},
      {"usable_bytes", usable_json(request)},
      {"missing_bytes", missing_bytes(step.memory, request)},
      {"kept_bytes", kinds_json(request, step.memory)},
      {"update_rules", predict::rules_json(step.rules)},
      {"arenas",
       {{"gather_bytes", step.schedule.gather_arena},
        {"reduce_bytes", step.schedule.reduce_arena},
        {"scratch_bytes", step.schedule.scratch}}},
      {"traffic", traffic_json(step.busiest_rank)},
      {"traffic_by_role", roles_json(step)},
      {"traffic_all_ranks", traffic_json(step.all_ranks)},
      {"predicted", predicted_json(request, step)},
      {"unmeasured", unmeasured_keys(request)},
      {"on_demand",
       {{"step_ms", step.on_demand.step_seconds * 1e3}, {"exposed_comm_ms", step.on_demand.exposed_seconds() * 1e3}}},
      {"gathers", gathers_json(step)},
      {"columnwise_copies", copies_json(step)},
      {"reductions", reductions_json(step)}};
  if (run.has_experts()) report["experts"] = experts_json(request, step.memory);
  return report;
}

std::string plan_head(const StepPlanRequest& request, const StepPlan& step) {
  return head_text(request, {.memory = step.memory,
                             .seconds = step.prediction.step_seconds,
                             .mfu = mfu(request, step.prediction),
                             .microbatches = request.run.microbatches()});
}

std::string plan_details(const StepPlanRequest& request, const StepPlan& step, std::size_t rows) {
  const std::size_t copies = step.schedule.copies.size();
  std::string text =
      fmt::format("\n{}: {} events, {} gathers, {}{} reductions\n",
                  request.kind == schedule::StepKind::train ? "training step" : "evaluation", step.trace.size(),
                  step.schedule.residencies.size(), copies == 0 ? "" : fmt::format("{} columnwise copies, ", copies),
                  step.schedule.reductions.size());
  text += fmt::format("recomputed activations: {}\n", predict::recompute_text(settings::recompute_choice(request.run)));
  text += memory_text(request, step);
  text += fmt::format("received by a rank in a step: weights {}, gradients {}\n",
                      bytes_text(step.busiest_rank.gathered), bytes_text(step.busiest_rank.reduced));
  return text + roles_text(step) + time_text(request, step) + experts_text(request, step.memory) +
         gathers_text(step, rows) + copies_text(step, rows) + reductions_text(step, request.run->mesh.dp > 1, rows);
}

}  // namespace tessera::plan
