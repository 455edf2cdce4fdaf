#include "tessera/plan/search/search_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "tessera/plan/plan_report.h"
#include "tessera/predict/model_flops.h"
#include "tessera/settings/trainer_options.h"

namespace tessera::plan {
namespace {

using nlohmann::ordered_json;

double tokens_per_second(const MeshPlan& mesh) {
  return static_cast<double>(mesh.run.tokens()) / mesh.seconds.total();
}

// Computes the mfu of each mesh. The flops of a step are the same for all meshes.
class Mfu {
 public:
  Mfu(const StepPlanRequest& request, const std::vector<MeshPlan>& meshes)
      : peak_(request.machine.flops.at(request.run->dtype)),
        flops_(meshes.empty() ? 0 : settings::model_flops(meshes.front().run)) {}
  double operator()(const MeshPlan& mesh) const {
    return predict::mfu_of(flops_, mesh.seconds.total(), mesh.run->mesh.ranks, peak_);
  }

 private:
  double peak_, flops_;
};

ordered_json mesh_json(const MeshPlan& mesh, double mfu) {
  const settings::ResolvedRun& run = mesh.run;
  const StepSeconds& s = mesh.seconds;
  ordered_json row;
  for (const auto& [axis, degree] : settings::axes_of(run.degrees())) row[axis] = degree;
  row.update({{"micro_batch", run->micro_batch},
              {"microbatches", run.microbatches()},
              {"recompute", name_of(run->recompute)},
              {"sequence_parallel", run.splits_tokens()},
              {"flags", flags_text(run)},
              {"step_ms", s.total() * 1e3},
              {"tokens_per_second", tokens_per_second(mesh)},
              {"mfu", mfu},
              {"compute_ms", s.compute * 1e3},
              {"exposed_ms", exposed_json(s)},
              {"memory_bytes", memory_json(mesh.memory)},
              {"fits", mesh.fits()},
              {"missing_bytes", mesh.missing}});
  return row;
}

// The unit of the memory of all rows.
struct MemoryUnit {
  std::string_view name;
  double bytes;
};

MemoryUnit memory_unit(const std::vector<MeshPlan>& meshes) {
  std::int64_t largest = 0;
  for (const MeshPlan& mesh : meshes) largest = std::max(largest, mesh.memory.total());
  return largest < 1'000'000'000 ? MemoryUnit{"MB", 1e6} : MemoryUnit{"GB", 1e9};
}

std::string row_text(const MeshPlan& mesh, double mfu, const MemoryUnit& unit) {
  const StepSeconds& s = mesh.seconds;
  const MemoryUse& m = mesh.memory;
  const auto in_unit = [&](std::int64_t bytes) { return static_cast<double>(bytes) / unit.bytes; };
  return fmt::format(
      "{:>10.1f} {:>10.0f} {:>6.3f} {:>8.1f} {:>8.1f} {:>8.1f} {:>7.1f} {:>4}  {:>6.1f} {:>6.1f} {:>6.1f} "
      "{:>6.1f} {:>6.1f} {:>6.1f}  {}\n",
      s.total() * 1e3, tokens_per_second(mesh), mfu, s.gathers * 1e3, s.gradients * 1e3, s.activations * 1e3,
      in_unit(m.total()), mesh.fits() ? "yes" : "no", in_unit(m.weights), in_unit(m.gathered), in_unit(m.gradients),
      in_unit(m.optimizer), in_unit(m.activations), in_unit(m.transfers + m.matrices + m.overhead),
      flags_text(mesh.run));
}

std::string usable_text(const StepPlanRequest& request) {
  if (request.machine.memory_bytes == 0) return "";
  return fmt::format("; a rank may use {}", bytes_text(usable_bytes(request)));
}

}  // namespace

ordered_json exposed_json(const StepSeconds& seconds) {
  return {{"gathers", seconds.gathers * 1e3},
          {"gradients", seconds.gradients * 1e3},
          {"activations", seconds.activations * 1e3},
          {"slowest_rank", seconds.slowest * 1e3},
          {"total", (seconds.total() - seconds.compute) * 1e3}};
}

ordered_json search_json(const StepPlanRequest& request, const std::vector<MeshPlan>& meshes) {
  const settings::ResolvedRun& best = meshes.front().run;
  const Mfu mfu(request, meshes);
  ordered_json rows = ordered_json::array();
  for (const MeshPlan& mesh : meshes) rows.push_back(mesh_json(mesh, mfu(mesh)));
  return {{"model", best->model},
          {"machine", request.machine.name},
          {"ranks", best->mesh.ranks},
          {"global_batch", best->global_batch},
          {"seq_len", best->seq_len},
          {"tokens", best.tokens()},
          {"dtype", name_of(best->dtype)},
          {"usable_bytes", usable_json(request)},
          {"unmeasured", unmeasured_keys(request)},
          {"meshes", std::move(rows)},
          {"fits", meshes.front().fits()},
          {"reason", reason_for(meshes)}};
}

std::string search_text(const StepPlanRequest& request, const std::vector<MeshPlan>& meshes, std::size_t rows) {
  const settings::ResolvedRun& best = meshes.front().run;
  const Mfu mfu(request, meshes);
  const MemoryUnit unit = memory_unit(meshes);
  std::string text = fmt::format(
      "{}: {}, {}, {} ranks of machine {}, {} sequences of {} tokens a step\n"
      "{} meshes, {} first{}; exposed: time that operators wait for weights, gradients and activations{}\n\n"
      "{:>10} {:>10} {:>6} {:>26} {:>7} {:>4}  {:>41}\n"
      "{:>10} {:>10} {:>6} {:>8} {:>8} {:>8} {:>7} {:>4}  {:>6} {:>6} {:>6} {:>6} {:>6} {:>6}  flags\n",
      best->model, models::params_text(*request.run.model()), name_of(best->dtype), best->mesh.ranks,
      request.machine.name, best->global_batch, best->seq_len, meshes.size(),
      meshes.front().fits() ? "best" : "none fits, the fewest missing bytes", usable_text(request),
      unmeasured_text(request), "", "", "", "exposed, ms", "", "", fmt::format("memory of a rank, {}", unit.name),
      "step, ms", "tokens/s", "mfu", "gathers", "gradient", "activat.", "all", "fits", "weight", "gather", "grad.",
      "optim.", "activ.", "other");
  for (std::size_t i = 0; i < std::min(rows, meshes.size()); ++i) text += row_text(meshes[i], mfu(meshes[i]), unit);
  if (meshes.size() > rows) text += fmt::format("  ... {} more (--rows)\n", meshes.size() - rows);
  return text + "\n" + reason_for(meshes) + "\n";
}

}  // namespace tessera::plan
