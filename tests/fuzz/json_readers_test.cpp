// Fuzzes the readers of JSON that people and other programs write, and of texts that ranks exchange.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/hub/run_directory.h"
#include "tessera/launch/lost_ranks.h"
#include "tessera/models/registry.h"
#include "tessera/plan/measured.h"
#include "tessera/predict/machine.h"
#include "tessera/schedule/check/order_text.h"
#include "tessera/schedule/events_json.h"
#include "tessera/settings/places.h"
#include "tessera/settings/settings.h"
#include "tessera/settings/text/parse.h"
#include "tessera/telemetry/metrics.h"
#include "tessera/telemetry/plot/draw.h"
#include "tessera/telemetry/plot/plotted_run.h"
#include "tessera/telemetry/plot/remarks.h"
#include "tests/fuzz/files.h"
#include "tests/fuzz/fuzzing.h"

namespace tessera::fuzz {
namespace {

using nlohmann::json;

settings::TrainConfig stored_config() {
  settings::TrainConfig config;
  config.model = "llama-tiny", config.data = {"data/train"}, config.out = "runs/a";
  config.steps = 9, config.seq_len = 16, config.dtype = quant::DType::bf16;
  config.mesh = {.ranks = 8, .tp = 2, .gtp = 2, .dp = 2};
  config.mesh.unused = {
      .dead = settings::parse_slots("dp0.gtp1:1", "--dead"), .tp_spares = "1", .reduced_batch = "auto"};
  config.formats.wire_rules.text = "layers.*=fp8,output.weight=bf16";
  config.debug_suppress.text = "5,7:2";
  return config;
}

TEST(Fuzz, JsonFiles) {
  const base::TempFolder folder;
  fuzz({.name = "JSON files",
        .seeds = {R"({"a": [1, -2.5e3, true, null], "b": {"c": "d\u00e9\n", "e": []}, "f": {}})", "[[[1]], {}]", "3"},
        .mutate = mutated_json,
        .read = [&](const std::string&) { base::shown(base::read_json_file(folder / "a.json")); },
        .write = [&](const std::string& text) { write_file(folder / "a.json", text); }});
}

TEST(Fuzz, OrderedJson) {
  fuzz({.name = "ordered JSON",
        .seeds = {R"([{"ph": "X", "ts": 1.5, "args": {"bytes": 3}}, {"ph": "M"}])"},
        .mutate = mutated_json,
        .read = [](const std::string& text) { base::parse_ordered_json(text, "a rank"); }});
}

TEST(Fuzz, ConfigsOfModels) {
  const base::TempFolder folder;
  fuzz({.name = "config.json of models",
        .seeds = model_configs(),
        .mutate = mutated_json,
        .read =
            [&](const std::string&) {
              const models::ModelConfigPtr config = models::read_model_config(folder / "config.json");
              config->to_json();
              config->sizes();
              for (const auto form : {models::ExpertTensors::separate, models::ExpertTensors::fused})
                config->num_layer_tensors(form);
            },
        .write = [&](const std::string& text) { write_file(folder / "config.json", text); }});
}

TEST(Fuzz, SettingsOfRuns) {
  fuzz({.name = "settings",
        .seeds = {settings::to_json(stored_config()).dump()},
        .mutate = mutated_json,
        .read = [](const std::string& text) {
          settings::TrainConfig config;
          settings::apply_json(config, base::parse_json(text, "f"), "f");
          settings::to_json(config);
        }});
}

TEST(Fuzz, Places) {
  settings::MeshSettings mesh{.tp = 8, .gtp = 4, .dp = 1024};
  fuzz({.name = "places",
        .seeds = {"dp0.gtp1:3,0;dp2:1", "gtp1.dp0.pp0.cp0:3", "dp1023.gtp3:7"},
        .mutate = mutated_bytes,
        .read = [&](const std::string& text) {
          mesh.unused.dead = settings::read_slots(text, "--dead");
          settings::inactive_slots(mesh);
        }});
}

TEST(Fuzz, FilesOfPlaces) {
  const base::TempFolder folder;
  settings::MeshSettings mesh{.tp = 8, .gtp = 4, .dp = 1024};
  fuzz({.name = "files of places",
        .seeds = {R"({"dp0.gtp1": [0, 3], "dp2": [1], "gtp3.dp1000": [7, 6, 5, 4]})"},
        .mutate = mutated_json,
        .read =
            [&](const std::string&) {
              mesh.unused.dead = settings::read_slots((folder / "dead.json").string(), "--dead");
              settings::inactive_slots(mesh);
            },
        .write = [&](const std::string& text) { write_file(folder / "dead.json", text); }});
}

TEST(Fuzz, Machines) {
  fuzz({.name = "machines",
        .seeds = {base::read_text(std::filesystem::path(TESSERA_CONFIGS) / "machines/h100.json"),
                  base::read_text(std::filesystem::path(TESSERA_CONFIGS) / "machines/laptop.json")},
        .mutate = mutated_json,
        .read = [](const std::string& text) { predict::parse_machine(base::parse_json(text, "f"), "m", "f"); }});
}

TEST(Fuzz, Traces) {
  schedule::NamedTrace named{.names = {"a.weight", "b.weight"}, .trace = {}};
  using schedule::EventKind;
  for (const EventKind kind : {EventKind::consume, EventKind::release, EventKind::produce, EventKind::publish})
    named.trace.push_back({.kind = kind, .parameter = 1});
  named.trace.push_back({.kind = EventKind::comm, .parameter = 0, .group = "tp", .op = "all_reduce", .bytes = 64});
  named.trace.push_back({.kind = EventKind::stash, .op = "x", .bytes = 64});
  fuzz({.name = "traces",
        .seeds = {schedule::trace_to_json(named)},
        .mutate = mutated_json,
        .read = [](const std::string& text) { schedule::trace_from_json(base::parse_json(text, "f"), "f"); }});
}

TEST(Fuzz, LinesOfMetrics) {
  telemetry::StepMetrics metrics;
  metrics.step = 3, metrics.loss = 2.5, metrics.tokens = 1024, metrics.gathered_bytes = 4096;
  telemetry::StepMetrics more = metrics;
  more.mfu = 0.4, more.valid_losses = {{"", 2.0}, {"a", 3.0}}, more.expert_load = 1.5,
  more.expert_counts = {{1, 2}, {3, 4}};
  more.slowest_rank = 1, more.slowest_rank_wait_ms = 0.5;
  more.suppressed = 1, more.skipped = true;
  fuzz({.name = "lines of metrics",
        .seeds = {telemetry::metrics_line(metrics), telemetry::metrics_line(more)},
        .mutate = mutated_json,
        .read = [](const std::string& text) { telemetry::parse_metrics_line(text, "f:1"); }});
}

TEST(Fuzz, PlotsOfRuns) {
  const base::TempFolder folder;
  telemetry::StepMetrics metrics;
  std::string lines;
  for (metrics.step = 1; metrics.step <= 3; ++metrics.step) {
    metrics.loss = 1.0 / static_cast<double>(metrics.step), metrics.valid_losses[""] = metrics.loss;
    lines += telemetry::metrics_line(metrics);
  }
  fuzz({.name = "plots",
        .seeds = {lines},
        .mutate = mutated_json,
        .read =
            [&](const std::string&) {
              const std::vector<telemetry::PlottedRun> runs{telemetry::read_plotted_run(folder / "metrics.jsonl")};
              telemetry::svg_of(runs);
              telemetry::terminal_plot(runs, 80);
              telemetry::remarks_of(runs.front());
            },
        .write = [&](const std::string& text) { write_file(folder / "metrics.jsonl", text); }});
}

TEST(Fuzz, CallOrders) {
  fuzz({.name = "orders of calls",
        .seeds = {schedule::to_text({.roles = {"a", "b"}, .calls = {{0, "gather", 64}, {1, "reduce", 32}}})},
        .mutate = mutated_json,
        .read = [](const std::string& text) { schedule::call_order_of(text); },
        .may_fail = true});
}

std::string config_of_run(const settings::TrainConfig& config) {
  return json{{"config", settings::to_json(config)}, {"model", json::parse(model_configs()[0])}}.dump();
}

// The folder of a run with one step.
struct RunFolder {
  RunFolder() {
    telemetry::StepMetrics metrics;
    metrics.step = 1;
    write_file(directory.metrics(), telemetry::metrics_line(metrics));
    write_file(directory.config(), config_of_run(stored_config()));
    write_file(directory.summary(), "{}");
  }
  base::TempFolder folder;
  hub::RunDirectory directory{folder.path()};
};

// `tessera resume-command` and `tessera plan --measured` read config.json.
TEST(Fuzz, ConfigsOfRuns) {
  const RunFolder made;
  settings::TrainConfig whole = stored_config();
  whole.mesh.unused = {};
  fuzz({.name = "config.json of runs",
        .seeds = {config_of_run(stored_config()), config_of_run(whole)},
        .mutate = mutated_json,
        .read =
            [&](const std::string&) {
              plan::read_measured_run(made.folder.path());
              launch::lost_ranks_of_run(made.folder.path(), {0}, "tessera");
            },
        .write = [&](const std::string& text) { write_file(made.directory.config(), text); }});
}

// `tessera plan --measured` reads summary.json.
TEST(Fuzz, SummariesOfRuns) {
  const RunFolder made;
  fuzz({.name = "summary.json of runs",
        .seeds =
            {R"({"gather_arena_bytes": 1024, "reduce_arena_bytes": 2048, "exchange_scratch_bytes": 10, "steps": 3})"},
        .mutate = mutated_json,
        .read = [&](const std::string&) { plan::read_measured_run(made.folder.path()); },
        .write = [&](const std::string& text) { write_file(made.directory.summary(), text); }});
}

}  // namespace
}  // namespace tessera::fuzz
