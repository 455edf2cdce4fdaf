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
#include "tessera/run/config/flags.h"
#include "tessera/run/plan/places_report.h"
#include "tessera/run/plan/plan_flags.h"
#include "tessera/run/plan/plan_report.h"
#include "tessera/run/plan/predicted_timeline.h"
#include "tessera/run/plan/progress_lines.h"
#include "tessera/run/plan/search_report.h"
#include "tessera/run/run_directory.h"
#include "tessera/schedule/events_json.h"

namespace tessera::apps {
namespace {

struct Output {
  bool json = false;
  std::size_t rows = 20;
  std::string timeline, events;  // file names; a file with an empty name is not written
};

void add_options(CLI::App& app, run::PlanCommandFlags& flags, Output& output) {
  run::add_flags(app, run::Command::plan, flags.settings);
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
run::StepPlan plan_of(const run::PlanCommandInputs& task, const std::string& events) {
  try {
    return run::plan_step(task.request);
  } catch (const InputError&) {
    throw;
  } catch (const Error& error) {
    if (events.empty()) throw;
    throw InputError("--events: the step in {} cannot be planned: {}", events, error.what());
  }
}

// Meshes with these numbers of ranks take some seconds to plan.
constexpr std::int64_t kManyRanks = 100'000, kManyRanksWithUnused = 4'096;

void print_many_ranks(const run::PlanCommandInputs& task) {
  const std::int64_t ranks = task.request.config.ranks;
  if (ranks >= (task.draws || task.has_unused ? kManyRanksWithUnused : kManyRanks))
    fmt::print(stderr, "planning {} ranks may take a minute\n", ranks);
}

// Returns a function that prints lines about the progress of a long plan to standard error. `things`: as for
// ProgressLines.
auto progress_printer(const char* things) {
  return [start = std::chrono::steady_clock::now(), lines = run::ProgressLines(things)](std::size_t planned,
                                                                                        std::size_t all) mutable {
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    if (const auto line = lines.next(planned, all, time.count())) fmt::print(stderr, "{}\n", *line);
  };
}

int threads_of_host() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U, 16U));
}

// Exit code 1 means that no mesh fits. The plan of a given mesh has code 0; its output contains whether the mesh fits.
int code_of(const run::PlanCommandInputs& task, const run::MemoryUse& memory) {
  return !task.propose || fits(memory, task.request) ? 0 : 1;
}

// A mesh that does not fit is not proposed.
nlohmann::ordered_json proposal_json(const run::PlanCommandInputs& task, const run::MemoryUse& memory,
                                     const std::string& reason) {
  const bool fit = fits(memory, task.request);
  return {{"flags", fit ? nlohmann::ordered_json(run::flags_text(task.request.config)) : nlohmann::ordered_json()},
          {"reason", reason}};
}

std::string proposal_text(const run::PlanCommandInputs& task, const run::MemoryUse& memory, const std::string& reason) {
  const std::string flags =
      fits(memory, task.request) ? fmt::format("proposed flags: {}\n", run::flags_text(task.request.config)) : "";
  return fmt::format("\n{}{} (tessera plan --search lists all meshes)\n", flags, reason);
}

int print_search(const run::StepPlanRequest& request, const std::vector<run::MeshPlan>& meshes, const Output& output) {
  if (output.json)
    fmt::print("{}\n", run::search_json(request, meshes).dump(2));
  else
    fmt::print("{}", run::search_text(request, meshes, output.rows));
  return meshes.front().fits() ? 0 : 1;
}

void write_files(const run::StepPlan& step, const Output& output) {
  if (!output.events.empty()) schedule::save_trace(output.events, {step.names(), step.trace});
  if (!output.timeline.empty()) base::write_file_atomically(output.timeline, run::timeline_json(step).dump());
}

int print_draws(const run::PlanCommandInputs& task, const Output& output) {
  run::ReplicaPlans plans(task.request);
  const std::vector<run::Draw> drawn =
      run::draw_dead_places(task.request, *task.draws, plans, progress_printer("draws"));
  if (output.json)
    fmt::print("{}\n", run::draws_json(task.request, *task.draws, drawn).dump(2));
  else
    fmt::print("{}", run::draws_text(task.request, *task.draws, drawn));
  return 0;
}

// Prints the plan of a mesh with unused places. The output files describe the slowest replica. Returns the exit code.
int print_places(const run::PlanCommandInputs& task, const std::string& measured, const Output& output) {
  run::ReplicaPlans plans(task.request);
  const run::PlacesPlan plan = run::plan_places(task.request, plans);
  if (!output.events.empty() || !output.timeline.empty()) {
    const run::KindStep& slowest = plan.step.slowest();
    write_files(plans.plan(plan.step.kinds, slowest.kind, slowest.microbatches), output);
  }
  nlohmann::ordered_json comparison;
  if (task.run) comparison = run::comparison_json(plan.step, *task.run, measured);
  if (output.json) {
    nlohmann::ordered_json report = run::places_json(task.request, plan);
    if (task.run) report["measured"] = comparison;
    return fmt::print("{}\n", report.dump(2)), 0;
  }
  fmt::print("{}", run::places_text(task.request, plan));
  if (task.run) fmt::print("{}", run::comparison_text(comparison));
  return 0;
}

}  // namespace

int run_plan(const Arguments& arguments) {
  CLI::App app("Plans a training step without running it: schedule, memory, traffic, time", "tessera plan");
  run::PlanCommandFlags flags{.may_propose = true};
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

  run::PlanCommandInputs task = run::plan_command_inputs(flags, configs_folder(base::read_environment()));
  print_warnings(task.warnings);
  print_many_ranks(task);
  if (task.draws) return print_draws(task, output);
  if (task.has_unused) return print_places(task, flags.measured, output);
  std::string reason;
  if (task.search) {
    const std::vector<run::MeshPlan> meshes =
        run::search_meshes(task.request, threads_of_host(), progress_printer("meshes"));
    if (!task.propose) return print_search(task.request, meshes, output);
    task.request.config = meshes.front().config;
    reason = run::reason_for(meshes);
  }
  const run::StepPlan step = plan_of(task, flags.events);
  write_files(step, output);
  nlohmann::ordered_json comparison;
  if (task.run) comparison = run::comparison_json(step, *task.run, flags.measured);
  if (output.json) {
    nlohmann::ordered_json report = run::plan_json(task.request, step);
    if (task.run) report["measured"] = comparison;
    if (task.propose) report["proposed"] = proposal_json(task, step.memory, reason);
    return fmt::print("{}\n", report.dump(2)), code_of(task, step.memory);
  }
  fmt::print("{}", run::plan_head(task.request, step));
  if (task.propose) fmt::print("{}", proposal_text(task, step.memory, reason));
  fmt::print("{}", run::plan_details(task.request, step, output.rows));
  if (task.run) fmt::print("{}", run::comparison_text(comparison));
  return code_of(task, step.memory);
}

}  // namespace tessera::apps
