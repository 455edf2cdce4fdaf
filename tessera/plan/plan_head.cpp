#include "tessera/plan/plan_head.h"

#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "tessera/settings/text/weights_by_format.h"

namespace tessera::plan {
namespace {

std::string mesh_line(const StepPlanRequest& request) {
  const settings::ResolvedRun& run = request.run;
  return fmt::format("mesh: {} of machine {}; {}, {}, {}\n", run.mesh().text, request.machine.name, run->model,
                     models::params_text(*run.model()), name_of(run->dtype));
}

std::string batch_line(const StepPlanRequest& request, std::int64_t microbatches) {
  const settings::ResolvedRun& run = request.run;
  std::string text = fmt::format("batch: {} {} of {} tokens, {} {} of {} x {}", run->global_batch,
                                 run->global_batch == 1 ? "sequence" : "sequences", run->seq_len, microbatches,
                                 microbatches == 1 ? "microbatch" : "microbatches", run->micro_batch, run->seq_len);
  if (!request.has_given_batch)
    text += fmt::format("; --global-batch is not given, so the plan takes {}",
                        microbatches == 1 ? "one microbatch"
                                          : fmt::format("{} {} for each rank", run->micro_batch,
                                                        run->micro_batch == 1 ? "sequence" : "sequences"));
  return text + "\n";
}

std::string memory_line(const StepPlanRequest& request, const MemoryUse& memory) {
  const std::int64_t all = request.machine.memory_bytes, missing = missing_bytes(memory, request);
  if (all == 0)
    return fmt::format(
        "memory: a rank needs {}; the file of machine {} does not state the memory, so every plan fits\n",
        bytes_text(memory.total()), request.machine.name);
  std::string text = fmt::format("memory: {}: a rank needs {} and may use {}", missing > 0 ? "does not fit" : "fits",
                                 bytes_text(memory.total()), bytes_text(usable_bytes(request)));
  if (request.memory_margin > 0)
    text += fmt::format(" ({} without the {:.3g} % of --memory-margin)", bytes_text(all), 100 * request.memory_margin);
  if (missing > 0) text += fmt::format("; {} are missing", bytes_text(missing));
  return text + "\n";
}

// Returns the value of an unmeasured key as text. Returns "" for a key that is not a link.
std::string rate_text(const predict::Machine& machine, const std::string& key) {
  const predict::MachineLink* link = nullptr;
  if (key == "links.within_node") link = &machine.within_node;
  if (key == "links.between_nodes") link = &machine.between_nodes;
  if (key == "links.collectives" && machine.collectives) link = &*machine.collectives;
  return link ? fmt::format(" ({:g} GB/s)", link->bytes_per_second / 1e9) : "";
}

std::string formats_text(const StepPlanRequest& request) {
  const shard::FormatTable table = request.run.format_table();
  return fmt::format("{}\n", fmt::join(settings::format_lines(table, request.run->dtype), "\n"));
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array unit_names{"B", "KB", "MB", "GB", "TB", "PB", "EB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1000 && unit + 1 < unit_names.size(); ++unit) value /= 1000;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, unit_names.at(unit));
}

std::string unmeasured_text(const StepPlanRequest& request) {
  std::vector<std::string> rates;
  for (const std::string& key : unmeasured_keys(request)) rates.push_back(key + rate_text(request.machine, key));
  return rates.empty() ? "" : fmt::format(", predicted with rates that nobody measured: {}", fmt::join(rates, ", "));
}

std::string head_text(const StepPlanRequest& request, const PlanFigures& figures) {
  const auto tokens = static_cast<double>(request.run.tokens());
  return mesh_line(request) + batch_line(request, figures.microbatches) + memory_line(request, figures.memory) +
         fmt::format("step: {:.3f} ms{}\ntokens/s: {:.0f}, mfu {:.3f}\n", figures.seconds * 1e3,
                     unmeasured_text(request), tokens / figures.seconds, figures.mfu) +
         formats_text(request);
}

}  // namespace tessera::plan
