#include "tessera/run/run_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iostream>

#include "tessera/base/atomic_file.h"
#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/hub/tokenizer/tokenizer_files.h"
#include "tessera/launch/resume_command.h"
#include "tessera/plan/plan_head.h"
#include "tessera/rendezvous/launcher.h"
#include "tessera/settings/expert_summary.h"
#include "tessera/settings/inspect_places.h"
#include "tessera/settings/resolve/needs.h"
#include "tessera/settings/resolve/tp_tokens.h"
#include "tessera/settings/settings.h"
#include "tessera/settings/text/weights_by_format.h"
#include "tessera/settings/trainer_options.h"
#include "tessera/settings/transport.h"

namespace tessera::run {
namespace {

using nlohmann::ordered_json;

// Takes an advisory lock on the folder. The lock ends with the process. Returns an empty descriptor if the file system
// has no locks.
checkpoint::FileDescriptor lock_folder(const std::filesystem::path& folder) {
  checkpoint::FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) throw InputError("--out: '{}': {}", folder.string(), std::strerror(errno));
  if (::flock(descriptor.get(), LOCK_EX | LOCK_NB) == 0) return descriptor;
  switch (errno) {
    case EWOULDBLOCK:
      throw InputError("--out: another process is training in '{}', expected a folder that no other process uses",
                       folder.string());
    case ENOSYS:
    case EOPNOTSUPP:
    case ENOLCK:
      return {};
    default:
      throw InputError("--out: '{}' cannot be locked: {}", folder.string(), std::strerror(errno));
  }
}

// Checks the files of the folder and locks it. Does nothing if there is no folder.
checkpoint::FileDescriptor check_and_lock(const hub::RunDirectory& directory, const std::string& resume) {
  hub::check_run_directory(directory.root(), resume);
  if (!std::filesystem::exists(directory.root())) return {};
  checkpoint::FileDescriptor lock = lock_folder(directory.root());
  telemetry::check_metrics(directory.metrics());
  return lock;
}

// Returns whether no step is left to train. A run of 0 steps does not count: it only stores the initial weights.
bool has_no_step(const RunSetup& setup) {
  return setup.first_step > setup.run->steps && setup.run->steps > 0;
}

// Returns the value of RunFiles::is_finished. The summary must belong to the last start of the run. A file that is not
// valid has no results.
bool has_finished(const RunSetup& setup, const hub::RunDirectory& directory) {
  if (!has_no_step(setup) || !hub::continues_in(directory.root(), setup.run->resume)) return false;
  try {
    const nlohmann::json summary = base::read_json_file(directory.summary());
    const auto last = summary.at("step").get<std::int64_t>(), trained = summary.at("trained_steps").get<std::int64_t>();
    return last == setup.run->steps && !summary.at("interrupted").get<bool>() &&
           last - trained + 1 == base::read_json_file(directory.config()).at("first_step").get<std::int64_t>();
  } catch (const std::exception&) {
    return false;
  }
}

// Under Open MPI each rank has a separate terminal, although the output may go to a file or a pipe.
bool is_terminal() {
  return ::isatty(STDOUT_FILENO) == 1 && rendezvous::read_ranks(rendezvous::own_variables()).launcher != "mpirun";
}

std::string held_out_text(const HeldOut& set, const settings::ResolvedRun& run) {
  const std::int64_t all = set.data->num_samples();
  std::string text = fmt::format("held-out data{}{}: {} samples, read ", set.name.empty() ? "" : " ", set.name, all);
  if (run->eval_first) text += "before the first step, ";
  if (run->eval_every > 0) text += fmt::format("after each {} steps and ", run->eval_every);
  text += "after the last step";
  const bool is_part = run->eval_samples > 0 && run->eval_samples < all && (run->eval_every > 0 || run->eval_first);
  return is_part ? text + fmt::format("; before the last step {} of them", run->eval_samples) : text;
}

std::int64_t suppressed_steps(const RunSummary& summary) {
  std::int64_t steps = 0;
  for (const auto& [counter, count] : summary.suppressed_by) steps += count;
  return steps;
}

ordered_json or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

// Adds the weights, bytes and flops of each number format, and the requested formats.
void add_formats(const settings::ResolvedRun& run, const RunSummary& summary, ordered_json& json) {
  const shard::FormatTable formats = run.format_table();
  json["weights_by_format"] = settings::weights_by_format(formats, run->dtype);
  json["weights_quantized_at_use"] = telemetry::by_format(formats.quantized_at_use, run->dtype);
  json["wire_format"] = telemetry::name_in_run(run->formats.wire, run->dtype);
  if (!run->formats.wire_rules.empty()) json["wire_rules"] = run->formats.wire_rules.text;
  if (run->formats.wire_backward)
    json["wire_format_backward"] = telemetry::name_in_run(*run->formats.wire_backward, run->dtype);
  if (!run->formats.wire_rules_backward.empty()) json["wire_rules_backward"] = run->formats.wire_rules_backward.text;
  const telemetry::StepMetrics &totals = summary.metrics.totals(), medians = summary.metrics.medians();
  json["gathered_bytes"] = telemetry::by_format(totals.gathered_by_format, run->dtype);
  json["gemm_format"] = telemetry::name_in_run(run->formats.products, run->dtype);
  if (!run->formats.product_rules.empty()) json["gemm_rules"] = run->formats.product_rules.text;
  for (const settings::Setting& setting : settings::settings())
    if (setting.is_of_products() && !settings::is_without_meaning(run.stored(), setting))
      json[std::string(setting.name)] = settings::value_of(run.stored(), setting);
  json["flops"] = telemetry::by_format(totals.flops_by_format, run->dtype);
  json["products_by_kernel"] = telemetry::products_by_kernel(totals, run->dtype);
  if (summary.columnwise_copies > 0) json["columnwise_copies"] = summary.columnwise_copies;
  if (run->mesh.tp == 1) return;
  json["tp_chunks"] = run->tp_chunks;
  json["tp_wire_format"] = telemetry::name_in_run(run->products.tp_wire, run->dtype);
  if (run->products.tp_wire != quant::Format::bf16)
    json["tp_wire_fallbacks"] = telemetry::by_reason(summary.tp_wire_fallbacks);
  json["tp_overlap"] = run.overlaps_tp();
  json["tp_pieces"] = summary.tp_pieces;
  json["tp_fallbacks"] = summary.tp_fallbacks;
  if (const std::string_view transport = settings::tp_transport_of(run, summary.schedules); !transport.empty())
    json["tp_transport"] = transport;
  json["activation_bytes"] = telemetry::by_format(totals.activations_by_format, run->dtype);
  json["exposed_ms"] = {{"weights", or_null(medians.exposed_weights_ms)}, {"tp", or_null(medians.exposed_tp_ms)}};
}

void add_schedules(const runtime::ScheduleStatistics& schedules, ordered_json& json) {
  json["schedules"] = schedules.planned;
  json["departed_steps"] = schedules.departed_steps;
  json["demand_gathers"] = schedules.demand_gathers;
  json["gather_arena_bytes"] = schedules.gather_arena_bytes;
  json["gather_peak_bytes"] = schedules.gather_peak_bytes;
  if (schedules.train_arenas)
    json["train_arenas"] = {{"gather_bytes", schedules.train_arenas->gather},
                            {"reduce_bytes", schedules.train_arenas->reduce},
                            {"scratch_bytes", schedules.train_arenas->scratch}};
  json["reduce_arena_bytes"] = schedules.reduce_arena_bytes;
  json["reduce_peak_bytes"] = schedules.reduce_peak_bytes;
  json["transfer_arena_bytes"] = schedules.transfer_arena_bytes;
  json["exchange_scratch_bytes"] = schedules.scratch_bytes;
  json["on_demand_peak_bytes"] = schedules.on_demand_peak_bytes;
  json["on_demand_staged_peak_bytes"] = schedules.on_demand_staged_peak_bytes;
}

void add_update(const settings::ResolvedRun& run, const RunSummary& summary, ordered_json& json) {
  json["update_rules"] = predict::rules_json(settings::update_rules_of(run));
  if (summary.matrix_bytes > 0) json["matrix_bytes"] = summary.matrix_bytes;
}

}  // namespace

RunFiles::RunFiles(const RunSetup& setup)
    : setup_(setup),
      directory_(setup.run->out),
      lock_(check_and_lock(directory_, setup.run->resume)),
      finished_(has_finished(setup, directory_)),
      progress_(std::cout, is_terminal(), setup.run->steps) {
  const settings::ResolvedRun& run = setup.run;
  note(fmt::format("model {}: {}, {}, {}, backend {}", run->model, models::params_text(*run.model()),
                   name_of(run->dtype), run.mesh().text, name_of(run->backend)));
  note(fmt::format("data: {} tokens, {} samples of {} tokens an epoch; {} sequences a step", setup.data->num_tokens(),
                   setup.data->num_samples(), run->seq_len, run->global_batch));
  for (const HeldOut& set : setup.valid) note(held_out_text(set, run));
  if (finished_) {
    note(
        fmt::format("the run is finished: {} has the results of its last step, {}. No file was changed; a greater "
                    "--steps trains longer",
                    directory_.summary().string(), run->steps));
    return;
  }
  if (setup.checkpoint)
    note(fmt::format("resuming from {} with step {}", setup.checkpoint->string(), setup.first_step));
  if (setup.evaluation_due && !setup.valid.empty())
    note(fmt::format("the evaluation after step {} is repeated first: a stop request had ended it",
                     setup.first_step - 1));
  for (const std::string& line : setup.notes) note(line);
  for (const std::string& line : settings::format_lines(run.format_table(), run->dtype)) note(line);
  if (has_no_step(setup) && !setup.evaluation_due)
    note(fmt::format("the checkpoint is at or after the last step, {}: a greater --steps trains longer", run->steps));
}

void RunFiles::open() {
  hub::create_run_directory(setup_.run->out, setup_.run->resume);
  if (lock_.get() < 0) lock_ = lock_folder(directory_.root());
  if (lock_.get() < 0) note("the file system of --out has no locks: another run can write to the same folder");
  std::error_code ignored;
  std::filesystem::remove(directory_.resume_without(), ignored);
  if (setup_.checkpoint) {
    checkpoint::restore_set_aside(*setup_.checkpoint);
    checkpoint::set_aside_after(directory_.checkpoints(), setup_.first_step - 1);
  }
  ordered_json state(stored_state(setup_));
  state["first_step"] = setup_.first_step;
  base::write_json_atomically(directory_.config(), state);
  if (!setup_.tokenizer.empty() && !hub::holds_tokenizer(directory_.tokenizer()))
    hub::copy_tokenizer(setup_.tokenizer, directory_.tokenizer());
  metrics_.emplace(directory_.metrics(), setup_.first_step - 1, setup_.run->dtype);
  tensorboard_.emplace(directory_.root(), setup_.first_step > 1 ? std::optional(setup_.first_step) : std::nullopt);
}

void RunFiles::check_room(std::int64_t checkpoint_bytes) {
  std::error_code code;
  const std::filesystem::space_info space = std::filesystem::space(directory_.root(), code);
  if (code) return;
  const std::int64_t keep = setup_.run->keep;
  std::int64_t count = 1;
  if (keep > 0) {
    const auto stored = static_cast<std::int64_t>(checkpoint::list_checkpoints(directory_.checkpoints()).size());
    count = std::max<std::int64_t>(1, keep + 1 - stored);
  }
  const std::int64_t needed = count * checkpoint_bytes;
  if (space.available >= static_cast<std::uintmax_t>(needed)) return;
  note(fmt::format("warning: {} has {} free, expected {} for {}", directory_.root().string(),
                   plan::bytes_text(static_cast<std::int64_t>(space.available)), plan::bytes_text(needed),
                   count == 1 ? "a checkpoint" : fmt::format("{} checkpoints (--keep {} and one more)", count, keep)));
}

void RunFiles::remove_set_aside() const {
  checkpoint::remove_set_aside(directory_.checkpoints());
}

void RunFiles::store(const telemetry::StepMetrics& metrics) {
  metrics_->write(metrics);
  tensorboard_->write(metrics.step, telemetry::scalars_of(metrics));
}

void RunFiles::step_trace(std::int64_t step, const ordered_json& trace) {
  const std::filesystem::path path = directory_.step_trace(step);
  base::write_file_atomically(path, trace.dump());
  note(fmt::format("timeline of step {}: {}", step, path.string()));
}

void RunFiles::finish(const RunSummary& summary) {
  const settings::ResolvedRun& run = setup_.run;
  ordered_json json = {{"step", summary.last_step},
                       {"interrupted", summary.interrupted},
                       {"trained_steps", summary.trained_steps},
                       {"skipped_steps", summary.skipped_steps},
                       {"suppressed_steps", suppressed_steps(summary)},
                       {"unproduced_gradients", summary.unproduced_gradients}};
  if (summary.failed_saves > 0) json["failed_saves"] = summary.failed_saves;
  if (!summary.suppressed_by.empty()) {
    json["suppressed_by"] = summary.suppressed_by;
    json["discarded_steps"] = summary.discarded_steps;
  }
  summary.metrics.add_to(json);
  if (!run->init.empty()) json["init"] = run->init;
  json["dtype"] = name_of(run->dtype);
  json["grad_wire"] = name_of(*run->grad_wire);
  if (run.has_experts() || run.has_unused_places())
    for (const auto& [axis, degree] : settings::axes_of(run.degrees())) json["mesh"][axis] = degree;
  if (run.has_unused_places()) json["places"] = settings::inspect_places(run);
  if (run->dtype == quant::DType::bf16) {
    const settings::MasterBytes masters = run.master_bytes();
    json["master_bytes"] = {{"split", masters.split}, {"fp32", masters.whole}};
  }
  add_formats(run, summary, json);
  add_update(run, summary, json);
  if (run->dropout.hidden > 0) json["hidden_dropout"] = run->dropout.hidden;
  if (run->dropout.embedding > 0) json["embedding_dropout"] = run->dropout.embedding;
  json["reduce_order"] = name_of(run->reduce_order);
  if (run->ranks_per_node > 0) json["ranks_per_node"] = run->ranks_per_node;
  json["deterministic"] = run->backend != settings::Backend::nccl || run->deterministic;
  json["checkpoint"] = summary.checkpoint.string();
  const runtime::ScheduleStatistics& schedules = summary.schedules;
  add_schedules(schedules, json);
  if (run->backend == settings::Backend::nccl) json["host_waits"] = summary.host_waits;
  if (run->cuda_graph) json["graph_steps"] = summary.graph_steps;
  if (run.has_experts())
    settings::add_expert_summary(settings::expert_summary(run, summary.expert_room, summary.padded_products), json);
  if (const std::string_view transport = settings::transport_of(run, schedules); !transport.empty()) {
    json["transport"] = transport;
    if (run->pushes && !schedules.indirect.empty())
      note("NCCL transferred some weights and gradients: " + schedules.indirect);
  }
  base::write_json_atomically(directory_.summary(), json);
  if (summary.skipped_steps > 0)
    note(fmt::format("{} steps were skipped: their gradient was not finite", summary.skipped_steps));
  for (const auto& [counter, steps] : summary.suppressed_by)
    note(fmt::format("{} steps were suppressed and repeated: stop counter '{}' was above 0", steps, counter));
  if (schedules.departed_steps > 0)
    note(fmt::format("{} steps departed from their schedule: {} weights were gathered on demand",
                     schedules.departed_steps, schedules.demand_gathers));
  const telemetry::StepMetrics& totals = summary.metrics.totals();
  note("multiplied: " + telemetry::format_shares(totals.flops_by_format, 1e-12, "TFLOP", run->dtype));
  note("gathered: " + telemetry::format_shares(totals.gathered_by_format, 1e-6, "MB", run->dtype));
  if (run->mesh.tp > 1)
    note("activations over tp: " + telemetry::format_shares(totals.activations_by_format, 1e-6, "MB", run->dtype));
  note_held_out_losses(json);
  note(fmt::format("checkpoint: {}", summary.checkpoint.empty() ? "none" : summary.checkpoint.string()));
  if (summary.interrupted) note_how_to_resume(summary);
}

void RunFiles::note_held_out_losses(const ordered_json& summary) {
  for (const HeldOut& set : setup_.valid)
    if (const auto loss = summary.find(telemetry::key_of_set(set.name)); loss != summary.end())
      note(fmt::format("held-out loss{}{} {:.4f}", set.name.empty() ? "" : " of ", set.name, loss->get<double>()));
}

void RunFiles::note_how_to_resume(const RunSummary& summary) {
  const rendezvous::Launch launch = rendezvous::read_ranks(rendezvous::own_variables());
  const std::string options =
      launch::calls_launcher(launch) ? fmt::format(" (add the other options of {})", launch.launcher) : "";
  note(fmt::format("interrupted after step {} of {}; to resume{}:", summary.last_step, setup_.run->steps, options));
  note("  " + launch::resume_command(setup_.run, program_invocation_name, launch));
}

}  // namespace tessera::run
