#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <limits>
#include <thread>

#include "command_line.h"
#include "configs_folder.h"
#include "subcommands.h"
#include "tessera/base/atomic_file.h"
#include "tessera/base/env.h"
#include "tessera/base/error.h"
#include "tessera/hub/run_directory.h"
#include "tessera/plan/places_report.h"
#include "tessera/plan/plan_report.h"
#include "tessera/plan/predicted_timeline.h"
#include "tessera/plan/search/plan_flags.h"
#include "tessera/plan/search/progress_lines.h"
#include "tessera/plan/search/search_report.h"
#include "tessera/schedule/events_json.h"
#include "tessera/settings/text/flags.h"

namespace tessera::apps {
namespace {

struct Output {
  bool json = false;
  std::size_t rows = 20;
  std::string timeline, events;  // file names; a file with an empty name is not written
};

void add_options(CLI::App& app, plan::PlanCommandFlags& flags, Output& output) {
  settings::add_flags(app, settings::Command::plan, flags.settings);
  app.add_option("--machine", flags.machine, "a name under configs/machines, or a JSON file (laptop)");
  app.add_option("--layers", flags.layers, "number of layers (default: the model's)");
  app.add_option("--memory-margin", flags.memory_margin,
                 "share of a processor's memory that the plan leaves free (0.03)");
  app.add_flag("--search", flags.search, "list the meshes of --ranks for --global-batch, best first");
  app.add_option("--dead-share", flags.dead_share,
                 "compare the ways to continue with this share of the places dead at random, such as 0.001");
  app.add_option("--dead-seeds", flags.dead_seeds, "draws of --dead-share, with the seeds 1, 2 ... (5)");
  app.add_flag("--evaluate", flags.evaluate, "plan an evaluation instead of a training step");
  app.add_option("--expert-load", flags.expert_load,
                 "experts: tokens of the busiest --ep rank, divided by the mean (1)");
  app.add_option("--measured", flags.measured, "folder of a run: plan this run and compare with its measurements");
  app.add_option("--events", flags.events, "plan the events of this file, as --save-events writes them");
  app.add_option("--save-events", output.events, "write the step's events to this file, as JSON");
  app.add_option("--trace", output.timeline, "write the predicted step to this file, for Perfetto");
  app.add_option("--rows", output.rows, "lines of the tables (20); 0: all")->check(CLI::Range(0, 1'000'000'000));
  app.add_flag("--json", output.json, "print as JSON");
}

// A damaged file of events is a user error, so every error becomes an InputError.
plan::StepPlan plan_of(const plan::PlanCommandInputs& task, const std::string& events) {
  try {
    return plan::plan_step(task.request);
  } catch (const InputError&) {
    throw;
  } catch (const Error& error) {
    if (events.empty()) throw;
    throw InputError("--events: the step in {} cannot be planned: {}", events, error.what());
  }
}

// Meshes with these numbers of ranks take some seconds to plan.
constexpr std::int64_t kManyRanks = 100'000, kManyRanksWithUnused = 4'096;

void print_many_ranks(const plan::PlanCommandInputs& task) {
  const std::int64_t ranks = task.request.run->mesh.ranks;
  if (ranks >= (task.draws || task.has_unused ? kManyRanksWithUnused : kManyRanks))
    fmt::print(stderr, "planning {} ranks may take a minute\n", ranks);
}

// Returns a function that prints lines about the progress of a long plan to standard error. `things`: as for
// ProgressLines.
auto progress_printer(const char* things) {
  return [start = std::chrono::steady_clock::now(), lines = plan::ProgressLines(things)](std::size_t planned,
                                                                                         std::size_t all) mutable {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (const auto line = lines.next(planned, all, time.count())) fmt::print(stderr, "{}\n", *line);
  };
}

int threads_of_host() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
}

// Exit code 1 means that no mesh fits. The plan of a given mesh has code 0; its output contains whether the mesh fits.
int code_of(const plan::PlanCommandInputs& task, const plan::MemoryUse& memory) {
  return !task.propose || fits(memory, task.request) ? 0 : 1;
}

// A mesh that does not fit is not proposed.
nlohmann::ordered_json proposal_json(const plan::PlanCommandInputs& task, const plan::MemoryUse& memory,
                                     const std::string& reason) {
  const bool fit = fits(memory, task.request);
  return {{"flags", fit ? nlohmann::ordered_json(plan::flags_text(task.request.run)) : nlohmann::ordered_json()},
          {"reason", reason}};
}

std::string proposal_text(const plan::PlanCommandInputs& task, const plan::MemoryUse& memory,
                          const std::string& reason) {
  const std::string flags =
      fits(memory, task.request) ? fmt::format("proposed flags: {}\n", plan::flags_text(task.request.run)) : "";
  return fmt::format("\n{}{} (tessera plan --search lists all meshes)\n", flags, reason);
}

int print_search(const plan::StepPlanRequest& request, const std::vector<plan::MeshPlan>& meshes,
                 const Output& output) {
  if (output.json)
    fmt::print("{}\n", plan::search_json(request, meshes).dump(2));
  else
    fmt::print("{}", plan::search_text(request, meshes, output.rows));
  return meshes.front().fits() ? 0 : 1;
}

void write_files(const plan::StepPlan& step, const Output& output) {
  if (!output.events.empty()) schedule::save_trace(output.events, {step.names(), step.trace});
  if (!output.timeline.empty()) base::write_file_atomically(output.timeline, plan::timeline_json(step).dump());
}

int print_draws(const plan::PlanCommandInputs& task, const Output& output) {
  plan::ReplicaPlans plans(task.request);
  const std::vector<plan::Draw> drawn =
      plan::draw_dead_places(task.request, *task.draws, plans, progress_printer("draws"));
  if (output.json)
    fmt::print("{}\n", plan::draws_json(task.request, *task.draws, drawn).dump(2));
  else
    fmt::print("{}", plan::draws_text(task.request, *task.draws, drawn));
  return 0;
}

// Prints the plan of a mesh with unused places. The output files describe the slowest replica. Returns the exit code.
int print_places(const plan::PlanCommandInputs& task, const std::string& measured, const Output& output) {
  plan::ReplicaPlans plans(task.request);
  const plan::PlacesPlan plan = plan::plan_places(task.request, plans);
  if (!output.events.empty() || !output.timeline.empty()) {
    const plan::KindStep& slowest = plan.step.slowest();
    write_files(plans.plan(plan.step.kinds, slowest.kind, slowest.microbatches), output);
  }
  nlohmann::ordered_json comparison;
  if (task.run) comparison = plan::comparison_json(plan.step, *task.run, measured);
  if (output.json) {
    nlohmann::ordered_json report = plan::places_json(task.request, plan);
    if (task.run) report["measured"] = comparison;
    return fmt::print("{}\n", report.dump(2)), 0;
  }
  fmt::print("{}", plan::places_text(task.request, plan));
  if (task.run) fmt::print("{}", plan::comparison_text(comparison));
  return 0;
}

}  // namespace

int run_plan(const Arguments& arguments) {
  CLI::App app("Plans a training step without running it: schedule, memory, traffic, time", "tessera plan");
  plan::PlanCommandFlags flags{.may_propose = true};
  Output output;
  add_options(app, flags, output);
  if (!parse(app, arguments)) return 0;
  for (const char* flag : {"--measured", "--events", "--save-events", "--trace"}) check_file(flag, app);
  check_output("--trace", output.timeline);
  check_output("--save-events", output.events);
  for (const auto& [flag, file] : {std::pair{"--trace", output.timeline}, {"--save-events", output.events}})
    if ((flags.search || flags.dead_share) && !file.empty())
      throw InputError("{}: got {} with {}, which plans many steps", flag, file,
                       flags.search ? "--search" : "--dead-share");
  if (output.rows == 0) output.rows = std::numeric_limits<std::size_t>::max();

  plan::PlanCommandInputs task = plan::plan_command_inputs(flags, configs_folder(base::read_environment()));
  print_warnings(task.warnings);
  print_many_ranks(task);
  if (task.draws) return print_draws(task, output);
  if (task.has_unused) return print_places(task, flags.measured, output);
  std::string reason;
  if (task.search) {
    const std::vector<plan::MeshPlan> meshes =
        plan::search_meshes(task.request, *task.search, threads_of_host(), progress_printer("meshes"));
    if (!task.propose) return print_search(task.request, meshes, output);
    task.request.run = meshes.front().run;
    reason = plan::reason_for(meshes);
  }
  const plan::StepPlan step = plan_of(task, flags.events);
  write_files(step, output);
  nlohmann::ordered_json comparison;
  if (task.run) comparison = plan::comparison_json(step, *task.run, flags.measured);
  if (output.json) {
    nlohmann::ordered_json report = plan::plan_json(task.request, step);
    if (task.run) report["measured"] = comparison;
    if (task.propose) report["proposed"] = proposal_json(task, step.memory, reason);
    return fmt::print("{}\n", report.dump(2)), code_of(task, step.memory);
  }
  fmt::print("{}", plan::plan_head(task.request, step));
  if (task.propose) fmt::print("{}", proposal_text(task, step.memory, reason));
  fmt::print("{}", plan::plan_details(task.request, step, output.rows));
  if (task.run) fmt::print("{}", plan::comparison_text(comparison));
  return code_of(task, step.memory);
}

}  // namespace tessera::apps
