#include "tessera/settings/settings.h"

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/models/size_limits.h"
#include "tessera/settings/resolve/run_limits.h"
#include "tessera/settings/text/values.h"

namespace tessera::settings {
namespace {
using nlohmann::json;

constexpr Limits kAny{};
constexpr Limits kCount{.low = 1, .high = kMax32};
constexpr Limits kCountOrZero{.low = 0, .high = kMax32};
constexpr Limits kRanks{.low = 1, .high = static_cast<double>(kMaxRanks)};
constexpr Limits kTpRanks{.low = 1, .high = static_cast<double>(kMaxTp)};
constexpr Limits kExpertRanks{.low = 1, .high = static_cast<double>(models::kMaxExperts)};
constexpr Limits kMicrobatch{.low = 1, .high = static_cast<double>(kMaxMicrobatchTokens)};
constexpr Limits kNotNegative{.low = 0};
constexpr Limits kTextOrNumber{.low = 0};  // a text such as "auto"; JSON may contain a number instead
constexpr Limits kShare{.low = 0, .high = 1};
constexpr Limits kPositive{.low = 0, .open_low = true};
constexpr Limits kBelowOne{.low = 0, .high = 1, .open_high = true};
constexpr Limits kHistory{.low = 1, .high = 65536}, kMargin{.low = -64, .high = 64};
constexpr Limits kMuonSteps{.low = 1, .high = 99};
constexpr OnResume kRun = OnResume::command_line, kKept = OnResume::kept, kMesh = OnResume::mesh,
                   kUnused = OnResume::places, kFixed = OnResume::fixed;
using C = TrainConfig;
using M = MeshSettings;
using F = FormatSettings;
constexpr Commands kSteps = Commands(Command::train) | Command::bench_step;
constexpr Commands kPlans = kSteps | Command::plan | Command::bench_schedule;
constexpr Commands kFrozen = Commands(Command::generate) | Command::evaluate;  // commands that run a stored model
constexpr Commands kMeshes = kPlans | kFrozen;
// Commands with settings for meshes with unused places.
constexpr Commands kPlaces = Commands(Command::train) | Command::plan;
constexpr Commands kBudgets = kSteps | Command::plan;  // not for bench schedule, which tries several budgets

constexpr std::array kSettings{
    Setting{
        "model", field<&C::model>(), kAny, kKept, "NAME|PATH",
        "a name under configs/, or a Hugging Face config.json or its folder (train: by default the model of --resume "
        "or --init)",
        kPlans | Command::bench_products},
    Setting{"init", field<&C::init>(), kAny, kKept, "FOLDER",
            "start from the weights of this Hugging Face folder (default: from random weights)"},
    Setting{"data", field<&C::data>(), kAny, kKept, "[W] PREFIX ...",
            "PREFIX.bin and PREFIX.idx, or W1 PREFIX1 W2 PREFIX2 ..."},
    Setting{"valid", field<&C::valid>(), kAny, kKept, "[W] PREFIX ... NAME=...",
            "held-out data, as --data; NAME=[W] PREFIX ... begins a set with a loss of its own"},
    Setting{"backend", field<&C::backend>(), kAny, kKept, "local|mpi|nccl", "ranks are threads, MPI processes, or GPUs",
            kSteps | kFrozen},
    Setting{"ranks", field<&C::mesh, &M::ranks>(), kRanks, kMesh, "N",
            "number of ranks (default: tp * gtp * dp, or the launcher's)", kPlans | Command::bench_links},
    Setting{"threads",
            field<&C::threads>(),
            {.low = 1, .high = 4096},
            kRun,
            "N",
            "intra-op threads of a rank",
            kSteps | kFrozen | Command::bench_kernels},
    Setting{"tp", field<&C::mesh, &M::tp>(), kTpRanks, kMesh, "N", "tensor parallel ranks",
            kMeshes | Command::bench_products},
    Setting{"gtp", field<&C::mesh, &M::gtp>(), kRanks, kMesh, "N",
            "ranks that shard the weights of each tensor-parallel part", kMeshes},
    Setting{"dp", field<&C::mesh, &M::dp>(), kRanks, kMesh, "N", "replicas (default: ranks / (tp * gtp))",
            kPlans | Command::evaluate},
    Setting{"etp", field<&C::mesh, &M::etp>(), kTpRanks, kMesh, "N",
            "experts: ranks that compute with parts of each expert", kPlans},
    Setting{"ep", field<&C::mesh, &M::ep>(), kExpertRanks, kMesh, "N", "experts: ranks that own different experts",
            kPlans},
    Setting{"egtp", field<&C::mesh, &M::egtp>(), kRanks, kMesh, "N",
            "experts: ranks that shard the weights of each part", kPlans},
    Setting{
        "dead", field<&C::mesh, &M::unused, &UnusedPlaces::dead>(), kAny, kUnused, "PLACES",
        "dead places, such as dp0.gtp1:0,3;dp2:1 (replica, gtp rank, tp slots; without gtp: gtp 0), or a .json file",
        kPlaces},
    Setting{"idle", field<&C::mesh, &M::unused, &UnusedPlaces::idle>(), kAny, kUnused, "PLACES",
            "live places that do not take part, as --dead", kPlaces},
    Setting{"tp_spares", field<&C::mesh, &M::unused, &UnusedPlaces::tp_spares>(), kTextOrNumber, kUnused, "auto|N",
            "tp groups with dead slots use N fewer slots than --tp (auto: the most dead slots of a group)", kPlaces},
    Setting{
        "reduced_batch", field<&C::mesh, &M::unused, &UnusedPlaces::reduced_batch>(), kTextOrNumber, kUnused, "auto|N",
        "sequences of a step for each replica with unused places (auto: by its speed; default: equal shares)", kPlaces},
    Setting{"micro_batch", field<&C::micro_batch>(), kMicrobatch, kKept, "N", "sequences computed at once",
            kPlans | Command::evaluate},
    Setting{"global_batch", field<&C::global_batch>(), kCount, kFixed, "N", "sequences of a step", kPlans},
    Setting{"seq_len", field<&C::seq_len>(), kMicrobatch, kFixed, "N",
            "tokens of a sequence (default: the model's longest)", kPlans | Command::evaluate},
    Setting{"steps", field<&C::steps>(), kCountOrZero, kKept, "N", "last step; 0 writes the initial checkpoint",
            kSteps},
    Setting{"schedule_steps", field<&C::rates, &train::LrSchedule::schedule_steps>(), kCountOrZero, kKept, "N",
            "length of the rate schedule (default: --steps)"},
    Setting{"seed", field<&C::seed>(), kAny, kFixed, "N", "seed of the initial weights and of the order of samples",
            Commands(Command::train) | Command::generate},
    Setting{"dtype", field<&C::dtype>(), kAny, kFixed, "fp32|bf16|fp64", "type of weights and activations",
            kMeshes | Command::bench_kernels},
    Setting{"grad_wire", field<&C::grad_wire>(), kAny, kKept, "fp32|bf16|fp64",
            "type of gradients in transfers (default: dtype)", kPlans},
    Setting{"wire_format", field<&C::formats, &F::wire>(), kAny, kKept, "bf16|fp8|fp8_block|mxfp8|nvfp4",
            "matrices are stored and gathered in this number format (docs/formats.md)", kPlans},
    Setting{"wire_rules", field<&C::formats, &F::wire_rules>(), kAny, kKept, "NAME=FORMAT,...",
            "formats by matrix name, which may be a shell pattern; the last match counts", kPlans},
    Setting{"wire_format_backward", field<&C::formats, &F::wire_backward>(), kAny, kKept,
            "bf16|fp8|fp8_block|mxfp8|nvfp4",
            "backward passes gather matrices in this number format (default: as forward)", kPlans},
    Setting{"wire_rules_backward", field<&C::formats, &F::wire_rules_backward>(), kAny, kKept, "NAME=FORMAT,...",
            "formats of backward passes by matrix name, as --wire-rules", kPlans},
    Setting{"gemm_format", field<&C::formats, &F::products>(), kAny, kKept, "bf16|fp8|fp8_block|mxfp8|nvfp4",
            "number format of matrix products; mxfp8 and nvfp4 are emulated (docs/formats.md)", kPlans},
    Setting{"gemm_rules", field<&C::formats, &F::product_rules>(), kAny, kKept, "NAME=FORMAT,...",
            "formats of products by matrix name, as --wire-rules", kPlans},
    Setting{"gemm_kernels", field<&C::formats, &F::kernels>(), kAny, kRun, "auto|native",
            "native: multiply codes only, and refuse products that would be emulated", kSteps},
    Setting{"nvfp4_hadamard", field<&C::formats, &F::nvfp4_hadamard>(), kAny, kKept, "on|off",
            "nvfp4 products: transform the operands of weight gradients (default: on)", kPlans, Needs::nvfp4_products},
    Setting{"nvfp4_rounding", field<&C::formats, &F::nvfp4_rounding>(), kAny, kKept, "stochastic|nearest",
            "nvfp4 products: how gradients are rounded (default: stochastic)", kPlans, Needs::nvfp4_products},
    Setting{"fp8_scaling", field<&C::products, &nn::ProductOptions::scaling>(), kAny, kKept, "delayed|current",
            "fp8 products: scales from the amaxes of earlier steps, or from a matrix's own amax", kPlans,
            Needs::fp8_products},
    Setting{"fp8_recipe", field<&C::products, &nn::ProductOptions::recipe>(), kAny, kKept, "hybrid|e4m3",
            "fp8 products: gradients are E5M2, or all matrices are E4M3", kPlans, Needs::fp8_products},
    Setting{"fp8_history", field<&C::products, &nn::ProductOptions::history>(), kHistory, kKept, "N",
            "delayed scaling: number of earlier steps that it uses", kSteps, Needs::delayed_scaling},
    Setting{"fp8_amax", field<&C::products, &nn::ProductOptions::choice>(), kAny, kKept, "newest|greatest",
            "delayed scaling: which amax of these steps counts", kSteps, Needs::delayed_scaling},
    Setting{"fp8_margin", field<&C::products, &nn::ProductOptions::margin>(), kMargin, kKept, "N",
            "delayed scaling: scales leave room for 2^N times the amax", kSteps, Needs::delayed_scaling},
    Setting{"tp_wire_format", field<&C::products, &nn::ProductOptions::tp_wire>(), kAny, kKept,
            "bf16|fp8|fp8_block|mxfp8|nvfp4",
            "sequence parallelism gathers tokens for products in this format as codes", kPlans, Needs::coded_tokens},
    Setting{"lr", field<&C::rates, &train::LrSchedule::lr>(), kNotNegative, kKept, "X", "highest learning rate"},
    Setting{"min_lr", field<&C::rates, &train::LrSchedule::min_lr>(), kNotNegative, kKept, "X",
            "learning rate at the end of a schedule that falls"},
    Setting{"warmup_steps", field<&C::rates, &train::LrSchedule::warmup_steps>(), kCountOrZero, kKept, "N",
            "steps of linear warm-up"},
    Setting{"lr_schedule", field<&C::rates, &train::LrSchedule::shape>(), kAny, kKept, "constant|cosine|linear|wsd",
            "shape after the warm-up"},
    Setting{"decay_steps", field<&C::rates, &train::LrSchedule::decay_steps>(), kCountOrZero, kKept, "N",
            "wsd: the rate falls during the last N steps of the schedule"},
    Setting{"decay_shape", field<&C::rates, &train::LrSchedule::decay_shape>(), kAny, kKept, "linear|sqrt|cosine",
            "wsd: the curve of the decay"},
    Setting{"beta1", field<&C::adamw, &ops::AdamW::beta1>(), kBelowOne, kKept, "X", "AdamW: decay of the first moment"},
    Setting{"beta2", field<&C::adamw, &ops::AdamW::beta2>(), kBelowOne, kKept, "X",
            "AdamW: decay of the second moment"},
    Setting{"eps", field<&C::adamw, &ops::AdamW::eps>(), kPositive, kKept, "X",
            "AdamW: added to the root of the second moment"},
    Setting{"weight_decay", field<&C::adamw, &ops::AdamW::weight_decay>(), kNotNegative, kKept, "X",
            "AdamW: decoupled decay of matrices"},
    Setting{"optimizer", field<&C::optimizer>(), kAny, kKept, "adamw|muon",
            "rule that updates the matrices between embedding and output layer (docs/optimizers.md)", kPlans},
    Setting{"optimizer_rules", field<&C::optimizer_rules>(), kAny, kKept, "NAME=RULE,...",
            "rules by parameter name, such as 'output.weight=muon'; the last match counts", kPlans},
    Setting{"muon_lr", field<&C::muon_lr>(), kNotNegative, kKept, "X", "Muon: highest learning rate (default: --lr)",
            Command::train, Needs::muon},
    Setting{"muon_momentum", field<&C::muon, &ops::Muon::momentum>(), kBelowOne, kKept, "X",
            "Muon: share of the old momentum in the new one", Command::train, Needs::muon},
    Setting{"muon_nesterov", field<&C::muon, &ops::Muon::nesterov>(), kAny, kKept, "on|off", "Muon: Nesterov momentum",
            Command::train, Needs::muon},
    Setting{"muon_steps", field<&C::muon, &ops::Muon::steps>(), kMuonSteps, kKept, "N", "Muon: Newton-Schulz steps",
            kPlans, Needs::muon},
    Setting{"muon_scale", field<&C::muon, &ops::Muon::scale>(), kAny, kKept, "moonshot|original",
            "Muon: moonshot: updates have the size of AdamW's; original: as in the first version", Command::train,
            Needs::muon},
    Setting{"lr_rules", field<&C::lr_rules>(), kAny, kKept, "NAME=FACTOR,...",
            "factors of the learning rate by parameter name, such as 'embedding.*=0.5'; the last match counts"},
    Setting{"decay_rules", field<&C::decay_rules>(), kAny, kKept, "NAME=X,...",
            "weight decay by parameter name, as --lr-rules; also of norms, which do not decay otherwise"},
    Setting{"moments", field<&C::moments>(), kAny, kKept, "fp32|bf16",
            "type of the moments of AdamW and Muon; bf16: rounded stochastically", kPlans},
    Setting{"masters", field<&C::masters>(), kAny, kKept, "auto|fp32|split",
            "masters of bf16 weights; split: 2 bytes beside the weight, with the same bits (auto: where possible)",
            kPlans},
    Setting{"clip", field<&C::clip>(), kNotNegative, kKept, "X", "largest norm of the gradient; 0: no clipping"},
    Setting{"hidden_dropout", field<&C::dropout, &nn::DropoutOptions::hidden>(), kBelowOne, kKept, "P",
            "dropout of the outputs of attention and of the feed-forward part", kPlans},
    Setting{"embedding_dropout", field<&C::dropout, &nn::DropoutOptions::embedding>(), kBelowOne, kKept, "P",
            "dropout of the embeddings", kPlans},
    Setting{"mask_documents", field<&C::mask_documents>(), kAny, kKept, "on|off",
            "attention and positions restart at documents", Commands(Command::train) | Command::evaluate},
    Setting{"recompute", field<&C::recompute>(), kAny, kKept, "none|selective|full|auto",
            "activations to recompute in backward", kPlans},
    Setting{"activation_budget", field<&C::activation_budget>(), kTextOrNumber, kKept, "BYTES",
            "bytes of activations that --recompute auto may keep", kPlans, Needs::automatic_recompute},
    Setting{"sequence_parallel", field<&C::sequence_parallel>(), kAny, kKept, "on|off",
            "shard activations outside the tensor-parallel parts by tokens (default: on with --tp above 1)", kPlans},
    Setting{"tp_chunks", field<&C::tp_chunks>(), kTextOrNumber, kKept, "auto|N",
            "sequence parallelism: products are computed in at most N chunks of tokens (auto: by size)", kPlans,
            Needs::divided_tokens},
    Setting{
        "tp_overlap", field<&C::tp_overlap>(), kAny, kRun, "on|off",
        "sequence parallelism: tokens travel in pieces beside the products (default: on if the pieces are long enough)",
        kPlans},
    Setting{"moe_aux", field<&C::router, &nn::RouterLossOptions::aux>(), kAny, kKept, "layer|pooled",
            "experts: auxiliary loss by layer, or pooled", kSteps},
    Setting{"router_z_loss", field<&C::router, &nn::RouterLossOptions::z_coefficient>(), kNotNegative, kKept, "X",
            "experts: coefficient of the z loss", kSteps},
    Setting{"expert_room", field<&C::expert_room>(), kPositive, kRun, "X",
            "experts on GPUs: memory for X times the even load", kPlans},
    Setting{"expert_bias_rate", field<&C::expert_bias_rate>(), kShare, kKept, "X",
            "experts: change of a router's bias in each step (default: 0.001 for routers with biases)", kPlans},
    Setting{"expert_capacity", field<&C::expert_capacity>(), kNotNegative, kKept, "X",
            "experts: drop rows of an expert beyond this multiple of the mean in a microbatch; 0: drop none", kPlans},
    Setting{"expert_counts", field<&C::expert_counts>(), kCountOrZero, kRun, "N",
            "steps between lines of metrics with the counts of each expert; 0: none"},
    Setting{"reduce_order", field<&C::reduce_order>(), kAny, kKept, "sequential|hierarchical",
            "add gradients in rank order, or first within each node", kPlans},
    Setting{"ranks_per_node", field<&C::ranks_per_node>(), kCountOrZero, kKept, "N",
            "ranks of a node, for --reduce-order hierarchical", kPlans, Needs::nodes},
    Setting{"zero", field<&C::zero>(), kAny, kKept, "on|off", "shard the optimizer state over replicas (ZeRO-1)",
            kPlans},
    Setting{"embedding", field<&C::embedding>(), kAny, kKept, "auto|gather|rows",
            "gather the table over gtp, or exchange the rows of the tokens; auto: by bytes", kPlans},
    Setting{"gather_budget", field<&C::gather_budget>(), kTextOrNumber, kRun, "BYTES|min|auto",
            "memory for gathered weights, such as 2GB", kBudgets},
    Setting{"reduce_budget", field<&C::reduce_budget>(), kTextOrNumber, kRun, "BYTES|min|auto",
            "memory for gradients in flight", kBudgets},
    Setting{"coalesce", field<&C::coalesce>(), kTextOrNumber, kRun, "BYTES",
            "combine neighbouring weights into transfers of up to this size", kPlans},
    Setting{"deterministic", field<&C::deterministic>(), kAny, kRun, "on|off",
            "on GPUs: sums without atomics; every repetition and gtp degree gives the same bits (slower)", kSteps},
    Setting{"pushes", field<&C::pushes>(), kAny, kRun, "on|off",
            "GPUs of a host copy weights and gradients into each other's memory; off: NCCL moves them", kSteps},
    Setting{"cuda_graph", field<&C::cuda_graph>(), kAny, kRun, "on|off",
            "on GPUs: launch steps that follow their schedule as one graph, captured from the first such step", kSteps},
    Setting{"peak_flops", field<&C::peak_flops>(), kNotNegative, kRun, "X",
            "flops per second of a rank's processor in --dtype, for mfu; 0: known for H100 and H200 in bf16", kSteps},
    Setting{"debug_poison", field<&C::debug_poison>(), kAny, kRun, "on|off", "fill free buffers with NaN"},
    Setting{"debug_delays", field<&C::debug_delays>(), kCountOrZero, kRun, "SEED",
            "seed of random communication delays; 0: no delays"},
    Setting{"debug_suppress", field<&C::debug_suppress>(), kAny, kRun, "STEP[:TIMES],...",
            "suppress the update of these steps this many times (default: once); the next attempt counts"},
    Setting{"trace_step", field<&C::trace_step>(), kCountOrZero, kRun, "N",
            "write the timeline of this step; 0: of no step"},
    Setting{"save_every", field<&C::save_every>(), kCountOrZero, kKept, "N",
            "steps between checkpoints; 0: only the last step"},
    Setting{"save_minutes", field<&C::save_minutes>(), kPositive, kKept, "X",
            "also save if the last checkpoint is this old, minutes"},
    Setting{"stop_minutes", field<&C::stop_minutes>(), kPositive, kRun, "X",
            "save and end within this time after the start, minutes"},
    Setting{"keep", field<&C::keep>(), kCountOrZero, kRun, "N", "number of newest checkpoints to keep; 0: all"},
    Setting{"keep_every", field<&C::keep_every>(), kCountOrZero, kRun, "N",
            "--keep removes no checkpoint of a multiple of this step; 0: off"},
    Setting{"save_failures", field<&C::save_failures>(), kCount, kRun, "N", "failed saves in a row that end the run"},
    Setting{"resume", field<&C::resume>(), kAny, kRun, "PATH|latest", "resume from a checkpoint"},
    Setting{"eval_every", field<&C::eval_every>(), kCountOrZero, kRun, "N",
            "steps between evaluations; 0: only at the end"},
    Setting{"eval_samples", field<&C::eval_samples>(), kCountOrZero, kKept, "N",
            "samples of each held-out set in the evaluations before the last step; 0: all"},
    Setting{"eval_first", field<&C::eval_first>(), kAny, kKept, "on|off", "also evaluate before the first step"},
    Setting{"timeout_s",
            field<&C::timeout_s>(),
            {.low = 0.001, .high = 1e6},
            kRun,
            "X",
            "longest wait for a rank, seconds",
            Commands(Command::train) | kFrozen},
    Setting{"out", field<&C::out>(), kAny, kRun, "FOLDER", "folder of the run"},
};

constexpr std::array kReserved{
    ReservedSetting{"cp", "1", "context parallelism"},
    ReservedSetting{"pp", "1", "pipeline parallelism"},
    ReservedSetting{"attention_dropout", "0", "dropout of attention's probabilities"},
};

}  // namespace

std::string_view name_of(Backend value) {
  return word_of(value);
}
std::string_view name_of(ReduceOrder value) {
  return word_of(value);
}
std::string_view name_of(RecomputeSetting value) {
  return word_of(value);
}

std::span<const Setting> settings() {
  return kSettings;
}
std::vector<const Setting*> settings_of(Command command) {
  std::vector<const Setting*> taken;
  for (const Setting& setting : kSettings)
    if (setting.accepted_by.contains(command)) taken.push_back(&setting);
  return taken;
}
std::span<const ReservedSetting> reserved_settings() {
  return kReserved;
}

std::string flag_of(std::string_view name) {
  std::string flag = "--" + std::string(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

const Setting* find_setting(std::string_view name) {
  const auto at = std::find_if(kSettings.begin(), kSettings.end(), [&](const Setting& s) { return s.name == name; });
  return at == kSettings.end() ? nullptr : &*at;
}

const ReservedSetting* find_reserved(std::string_view name) {
  const auto at = std::find_if(kReserved.begin(), kReserved.end(), [&](const auto& s) { return s.name == name; });
  return at == kReserved.end() ? nullptr : &*at;
}

void set_from_json(TrainConfig& config, const Setting& setting, const json& value, const std::string& where) {
  setting.field.put(config, value,
                    {.range = setting.range, .where = where, .may_be_empty = setting.field.may_be_empty});
  config.given.insert(std::string(setting.name));
}

void set_from_text(TrainConfig& config, const Setting& setting, const std::vector<std::string>& words,
                   const std::string& where) {
  if (words.empty() || (!setting.field.is_list && words.size() != 1))
    refuse(where, words, words.empty() ? "a value" : "one value; it is given more than once");
  set_from_json(config, setting, setting.field.json_of(words), where);
}

void set_from_words(TrainConfig& config, const SettingWords& words) {
  for (const auto& [name, given] : words)
    if (!given.empty()) set_from_text(config, *find_setting(name), given, flag_of(name));
}

void check_reserved(const ReservedSetting& setting, const json& value, const std::string& where) {
  const std::string got = value.is_string() ? value.get<std::string>() : value.dump();
  if (got != setting.only_value && !(setting.only_value == "off" && value == false))
    throw InputError("{}: got {}: {} is not built yet, expected {}", where, base::shown(value), setting.feature,
                     setting.only_value);
}

json value_of(const TrainConfig& config, const Setting& setting) {
  const json value = setting.field.get(config);
  const bool automatic = value.is_number() && value.get<double>() < setting.range.low;
  const bool is_empty_text = value.is_string() && value.get_ref<const std::string&>().empty();
  const bool absent = is_empty_text || (value.is_array() && value.empty());
  return automatic || absent ? json() : value;
}

json to_json(const TrainConfig& config) {
  json out = json::object();
  for (const Setting& setting : kSettings) out[std::string(setting.name)] = value_of(config, setting);
  return out;
}

}  // namespace tessera::settings
