#include "tessera/plan/search/mesh_search.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/plan/expert_layouts.h"
#include "tessera/plan/plan_report.h"
#include "tessera/settings/resolve/run_limits.h"
#include "tessera/settings/run_mesh.h"

namespace tessera::plan {
namespace {

// More recomputation leaves more memory for arenas, which hide transfers of weights and gradients. If the exposed
// transfers take less than this share of a step, larger arenas cannot make the step faster.
constexpr double kHidden = 0.01;

StepPlanRequest with_microbatches(StepPlanRequest request, std::int64_t microbatches) {
  request.run = request.run.with_microbatches(microbatches);
  return request;
}

bool has_degree(const settings::TrainConfig& config, const char* name, std::int64_t asked, std::int64_t degree) {
  return !config.given.contains(name) || asked == degree;
}

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> all;
  for (std::int64_t i = 1; i <= number; ++i)
    if (number % i == 0) all.push_back(i);
  return all;
}

// Returns the request for the asked run on a mesh.
StepPlanRequest on_mesh(StepPlanRequest request, const settings::TrainConfig& asked, const nn::MeshDegrees& degrees) {
  request.run = settings::resolve(on(asked, degrees), request.run.model(), settings::Use::plan);
  return request;
}

// Returns the degrees with the expert degrees whose layer is predicted to be the shortest. Without experts, returns the
// degrees. Leaves out etp degrees that the run's settings refuse, such as a 4-bit format with odd columns.
nn::MeshDegrees with_experts(const StepPlanRequest& request, const settings::TrainConfig& asked,
                             nn::MeshDegrees degrees) {
  const std::int64_t experts = request.run.model()->sizes().num_experts;
  if (experts == 0) return degrees;
  std::optional<ExpertLayout> best;
  std::optional<InputError> refusal;  // of the first etp that is refused
  for (const std::int64_t etp : divisors(degrees.tp)) {
    const std::int64_t ep = degrees.tp / etp;  // fits with egtp 1; expert_layouts tries every ep and egtp
    if (!has_degree(asked, "etp", asked.mesh.etp, etp) || ep > experts) continue;
    degrees.experts = {.etp = static_cast<int>(etp), .ep = static_cast<int>(ep)};
    try {
      for (const ExpertLayout& layout : expert_layouts(on_mesh(request, asked, degrees)))
        if (has_degree(asked, "ep", asked.mesh.ep, layout.ep) &&
            has_degree(asked, "egtp", asked.mesh.egtp, layout.egtp) &&
            (!best || layout.total_seconds() < best->total_seconds()))
          best = layout;
    } catch (const InputError& error) {
      if (!refusal) refusal = error;
    }
  }
  if (!best && refusal) throw *refusal;
  if (!best)
    throw InputError("experts: no etp x ep x egtp shards the experts of {} over tp {} x gtp {}", asked.model,
                     degrees.tp, degrees.gtp);
  degrees.experts = {
      .etp = static_cast<int>(best->etp), .ep = static_cast<int>(best->ep), .egtp = static_cast<int>(best->egtp)};
  return degrees;
}

void check_degrees(const settings::TrainConfig& asked) {
  for (const auto& [name, degree] : {std::pair{"tp", asked.mesh.tp}, {"gtp", asked.mesh.gtp}, {"dp", asked.mesh.dp}})
    if (asked.given.contains(name) && asked.mesh.ranks % degree != 0)
      throw InputError("--ranks: got {}, expected a multiple of --{} {}", asked.mesh.ranks, name, degree);
}

// Returns tp, gtp and dp of every mesh that the flags allow, with the asked expert degrees.
std::vector<nn::MeshDegrees> dense_meshes(const settings::TrainConfig& asked, int ranks_per_node) {
  const nn::ExpertDegrees experts = *settings::degrees_in(asked.mesh).experts;
  std::vector<nn::MeshDegrees> meshes;
  for (const std::int64_t tp : divisors(asked.mesh.ranks)) {
    if (tp > settings::kMaxTp || !has_degree(asked, "tp", asked.mesh.tp, tp)) continue;
    if (!asked.given.contains("tp") && tp > ranks_per_node) continue;
    for (const std::int64_t gtp : divisors(asked.mesh.ranks / tp)) {
      const std::int64_t dp = asked.mesh.ranks / tp / gtp;
      const bool is_asked = has_degree(asked, "gtp", asked.mesh.gtp, gtp) && has_degree(asked, "dp", asked.mesh.dp, dp);
      if (!is_asked || asked.global_batch % (asked.micro_batch * gtp * dp) != 0) continue;
      meshes.push_back(
          {.tp = static_cast<int>(tp), .gtp = static_cast<int>(gtp), .dp = static_cast<int>(dp), .experts = experts});
    }
  }
  return meshes;
}

bool is_better(const MeshPlan& a, const MeshPlan& b) {
  if (a.missing != b.missing) return a.missing < b.missing;
  return a.seconds.total() < b.seconds.total();
}

// Plans a mesh as plan_mesh() does. `parameters` are those of prepare_step(). If they are empty, sets them.
MeshPlan plan_with(const StepPlanRequest& request, std::vector<predict::PlannedParameter>& parameters) {
  const std::int64_t microbatches = request.run.microbatches();
  const std::int64_t planned = std::min(microbatches, kPlannedMicrobatches);
  const StepPlanRequest longer = with_microbatches(request, planned);
  const PreparedStep prepared = prepare_step(longer, parameters);  // the same for 2 or more microbatches
  parameters = prepared.parameters;
  const StepPlan step = plan_step(longer, prepared);
  MeshPlan plan{.run = request.run, .seconds = seconds_of(step), .memory = step.memory};
  plan.missing = missing_bytes(step.memory, request);
  if (microbatches == planned) return plan;
  StepPlanRequest fewer = with_microbatches(request, planned - 1);
  fewer.gather_budget = step.schedule.gather_arena;
  fewer.reduce_budget = step.schedule.reduce_arena + step.schedule.scratch;
  add_microbatches(seconds_of(plan_step(fewer, prepared)), static_cast<double>(microbatches - planned), plan.seconds);
  return plan;
}

// Plans one mesh with the best choice of recomputation.
MeshPlan best_recomputation(const StepPlanRequest& request, settings::TrainConfig asked, const nn::MeshDegrees& mesh) {
  std::vector<predict::PlannedParameter> parameters;
  const nn::MeshDegrees degrees = with_experts(request, asked, mesh);
  std::vector<settings::RecomputeSetting> choices{
      settings::RecomputeSetting::none, settings::RecomputeSetting::selective, settings::RecomputeSetting::full};
  if (asked.given.contains("recompute")) choices = {asked.recompute};
  std::optional<MeshPlan> best;
  for (const settings::RecomputeSetting choice : choices) {
    asked.recompute = choice;
    MeshPlan plan = plan_with(on_mesh(request, asked, degrees), parameters);
    if (!best || is_better(plan, *best)) best = std::move(plan);
    const double exposed = best->seconds.gathers + best->seconds.gradients;
    if (best->fits() && exposed < kHidden * best->seconds.total()) break;
  }
  return *std::move(best);
}

// Calls `plan` for each index below `count`, on several threads. Throws the first error.
template <typename Plan>
void for_each_on(int threads, std::size_t count, const Plan& plan) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) try {
        plan(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next = count;
      }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  helpers.clear();  // joins the threads
  if (error) std::rethrow_exception(error);
}

std::string milliseconds(double seconds) {
  return fmt::format("{:.3g} ms", seconds * 1e3);
}

}  // namespace

StepSeconds seconds_of(const StepPlan& step) {
  const schedule::Prediction& p = step.prediction;
  return {.compute = p.compute_seconds,
          .gathers = p.gather_exposed_seconds,
          .gradients = p.reduce_exposed_seconds,
          .activations = step.activations_seconds(),
          .slowest = step.slowest_rank_seconds()};
}

void add_microbatches(const StepSeconds& shorter, double times, StepSeconds& longer) {
  const auto add = [&](double StepSeconds::*part) {
    longer.*part = std::max(0.0, longer.*part + times * (longer.*part - shorter.*part));
  };
  for (const auto part : {&StepSeconds::compute, &StepSeconds::gathers, &StepSeconds::gradients,
                          &StepSeconds::activations, &StepSeconds::slowest})
    add(part);
}

MeshPlan plan_mesh(const StepPlanRequest& request) {
  std::vector<predict::PlannedParameter> parameters;
  return plan_with(request, parameters);
}

std::vector<MeshPlan> search_meshes(const StepPlanRequest& request, const settings::TrainConfig& asked, int threads,
                                    const SearchProgress& progress) {
  check_degrees(asked);
  const std::vector<nn::MeshDegrees> meshes = dense_meshes(asked, request.machine.ranks_per_node);
  if (meshes.empty())
    throw InputError(
        "--search: no mesh of --ranks {} is possible: --global-batch {} is not a multiple of --micro-batch {} * gtp * "
        "dp for any tp x gtp x dp that the flags allow",
        asked.mesh.ranks, asked.global_batch, asked.micro_batch);
  std::vector<std::optional<MeshPlan>> plans(meshes.size());
  std::vector<std::string> refusals(meshes.size());  // index: mesh; why the model or its formats do not allow the mesh
  std::mutex mutex;
  std::size_t planned = 0;
  for_each_on(threads, meshes.size(), [&](std::size_t i) {
    try {
      plans[i] = best_recomputation(request, asked, meshes[i]);
    } catch (const InputError& error) {
      refusals[i] = error.what();
    }
    const std::lock_guard lock(mutex);
    if (progress) progress(++planned, meshes.size());
  });
  std::vector<MeshPlan> found;
  for (std::optional<MeshPlan>& plan : plans)
    if (plan) found.push_back(*std::move(plan));
  if (found.empty() && std::ranges::count(refusals, refusals.front()) == std::ssize(refusals))
    throw InputError("{}", refusals.front());
  if (found.empty())
    throw InputError("--search: no mesh of --ranks {} is possible, for example tp {} x gtp {} x dp {}: {}",
                     asked.mesh.ranks, meshes.front().tp, meshes.front().gtp, meshes.front().dp, refusals.front());
  std::ranges::stable_sort(found, is_better);
  return found;
}

std::string reason_for(const std::vector<MeshPlan>& meshes) {
  const MeshPlan& best = meshes.front();
  const std::string first = degrees_text(best.run.degrees());
  if (!best.fits())
    return fmt::format("No mesh fits. {} lacks the fewest bytes: a rank needs {}, which is {} more than it may use.",
                       first, bytes_text(best.memory.total()), bytes_text(best.missing));
  if (meshes.size() == 1) return fmt::format("{} is the only mesh that the flags allow.", first);
  const MeshPlan& next = meshes[1];
  const std::string second = degrees_text(next.run.degrees());
  if (!next.fits())
    return fmt::format("Only {} fits: a rank needs {}, and {} with {}.", first, bytes_text(best.memory.total()),
                       bytes_text(next.memory.total()), second);
  struct Cause {
    double gain = 0;  // seconds by which the first mesh is faster
    std::string_view text;
  };
  const StepSeconds &a = best.seconds, &b = next.seconds;
  const std::array causes{Cause{b.compute - a.compute, "operators"}, Cause{b.gathers - a.gathers, "waits for weights"},
                          Cause{b.gradients - a.gradients, "waits for gradients"},
                          Cause{b.activations - a.activations, "waits for activations"}};
  const Cause& gain = *std::ranges::max_element(causes, {}, &Cause::gain);
  const Cause& loss = *std::ranges::min_element(causes, {}, &Cause::gain);
  const double total = b.total() - a.total();
  if (gain.gain <= 0) return fmt::format("{} and {} take equally long.", first, second);
  std::string text =
      fmt::format("{} is {} ({:.1f} %) faster than {} because {} take {} less", first, milliseconds(total),
                  100 * total / b.total(), second, gain.text, milliseconds(gain.gain));
  if (loss.gain < 0) text += fmt::format(", although {} take {} more", loss.text, milliseconds(-loss.gain));
  return text + ".";
}

std::string degrees_text(const nn::MeshDegrees& degrees) {
  std::vector<std::string> parts;
  for (const auto& [axis, degree] : settings::axes_of(degrees))
    if (axis != "edp") parts.push_back(fmt::format("{} {}", axis, degree));
  return fmt::format("{}", fmt::join(parts, " x "));
}

std::string flags_text(const settings::ResolvedRun& run) {
  std::string text;
  for (const auto& [axis, degree] : settings::axes_of(run.degrees()))
    if (axis != "edp") text += fmt::format("{}--{} {}", text.empty() ? "" : " ", axis, degree);
  text += fmt::format(" --global-batch {}", run->global_batch);
  if (run->recompute != settings::RecomputeSetting::none)
    text += fmt::format(" --recompute {}", name_of(run->recompute));
  if (run->mesh.tp > 1 && !run.splits_tokens()) text += " --sequence-parallel off";
  if (run->tp_chunks != "auto") text += " --tp-chunks " + run->tp_chunks;
  if (run->tp_overlap) text += fmt::format(" --tp-overlap {}", *run->tp_overlap ? "on" : "off");
  return text;
}

}  // namespace tessera::plan
