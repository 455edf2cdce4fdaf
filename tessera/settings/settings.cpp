#include "tessera/settings/settings.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/models/size_limits.h"
#include "tessera/settings/checks/run_limits.h"

namespace tessera::settings {
namespace {
using nlohmann::json;
using quant::DType;
using quant::Format;

constexpr double kMax32 = 2147483647.0;
constexpr Range kAny{};
constexpr Range kCount{.low = 1, .high = kMax32};
constexpr Range kCountOrZero{.low = 0, .high = kMax32};
constexpr Range kRanks{.low = 1, .high = static_cast<double>(kMaxRanks)};
constexpr Range kTpRanks{.low = 1, .high = static_cast<double>(kMaxTp)};
constexpr Range kExpertRanks{.low = 1, .high = static_cast<double>(models::kMaxExperts)};
constexpr Range kMicrobatch{.low = 1, .high = static_cast<double>(kMaxMicrobatchTokens)};
constexpr Range kNotNegative{.low = 0};
constexpr Range kTextOrNumber{.low = 0};  // a text such as "auto"; JSON may contain a number instead
constexpr Range kShare{.low = 0, .high = 1};
constexpr Range kPositive{.low = 0, .open_low = true};
constexpr Range kBelowOne{.low = 0, .high = 1, .open_high = true};
constexpr Range kHistory{.low = 1, .high = 65536}, kMargin{.low = -64, .high = 64};
constexpr OnResume kRun = OnResume::command_line, kKept = OnResume::kept, kMesh = OnResume::mesh,
                   kUnused = OnResume::places, kFixed = OnResume::fixed;
using C = TrainConfig;
constexpr Commands kSteps = Commands(Command::train) | Command::bench_step;
constexpr Commands kPlans = kSteps | Command::plan | Command::bench_schedule;
constexpr Commands kFrozen = Commands(Command::generate) | Command::evaluate;  // commands that run a stored model
constexpr Commands kMeshes = kPlans | kFrozen;
// Commands with settings for meshes with unused places.
constexpr Commands kPlaces = Commands(Command::train) | Command::plan;
constexpr Commands kBudgets = kSteps | Command::plan;  // not for bench schedule, which tries several budgets

constexpr std::array kSettings{
    Setting{
        "model", &C::model, kAny, kKept, "NAME|PATH",
        "a name under configs/, or a Hugging Face config.json or its folder (train: by default the model of --resume "
        "or --init)",
        kPlans | Command::bench_products},
    Setting{"init", &C::init, kAny, kKept, "FOLDER",
            "start from the weights of this Hugging Face folder (default: from random weights)"},
    Setting{"data", &C::data, kAny, kKept, "[W] PREFIX ...", "PREFIX.bin and PREFIX.idx, or W1 PREFIX1 W2 PREFIX2 ..."},
    Setting{"valid", &C::valid, kAny, kKept, "[W] PREFIX ...", "held-out data, as --data"},
    Setting{"backend", &C::backend, kAny, kKept, "local|mpi|nccl", "ranks are threads, MPI processes, or GPUs",
            kSteps | kFrozen},
    Setting{"ranks", &C::ranks, kRanks, kMesh, "N", "number of ranks (default: tp * gtp * dp, or the launcher's)",
            kPlans | Command::bench_links},
    Setting{"threads",
            &C::threads,
            {.low = 1, .high = 4096},
            kRun,
            "N",
            "intra-op threads of a rank",
            kSteps | kFrozen | Command::bench_kernels},
    Setting{"tp", &C::tp, kTpRanks, kMesh, "N", "tensor parallel ranks", kMeshes | Command::bench_products},
    Setting{"gtp", &C::gtp, kRanks, kMesh, "N", "ranks that shard the weights of each tensor-parallel part", kMeshes},
    Setting{"dp", &C::dp, kRanks, kMesh, "N", "replicas (default: ranks / (tp * gtp))", kPlans | Command::evaluate},
    Setting{"etp", &C::etp, kTpRanks, kMesh, "N", "experts: ranks that compute with parts of each expert", kPlans},
    Setting{"ep", &C::ep, kExpertRanks, kMesh, "N", "experts: ranks that own different experts", kPlans},
    Setting{"egtp", &C::egtp, kRanks, kMesh, "N", "experts: ranks that shard the weights of each part", kPlans},
    Setting{
        "dead", &C::dead, kAny, kUnused, "PLACES",
        "dead places, such as dp0.gtp1:0,3;dp2:1 (replica, gtp rank, tp slots; without gtp: gtp 0), or a .json file",
        kPlaces},
    Setting{"idle", &C::idle, kAny, kUnused, "PLACES", "live places that do not take part, as --dead", kPlaces},
    Setting{"tp_spares", &C::tp_spares, kTextOrNumber, kUnused, "auto|N",
            "tp groups with dead slots use N fewer slots than --tp (auto: the most dead slots of a group)", kPlaces},
    Setting{"reduced_batch", &C::reduced_batch, kTextOrNumber, kUnused, "auto|N",
            "sequences of a step for each replica with unused places (auto: by its speed; default: equal shares)",
            kPlaces},
    Setting{"micro_batch", &C::micro_batch, kMicrobatch, kKept, "N", "sequences computed at once",
            kPlans | Command::evaluate},
    Setting{"global_batch", &C::global_batch, kCount, kFixed, "N", "sequences of a step", kPlans},
    Setting{"seq_len", &C::seq_len, kMicrobatch, kFixed, "N", "tokens of a sequence (default: the model's longest)",
            kPlans | Command::evaluate},
    Setting{"steps", &C::steps, kCountOrZero, kKept, "N", "last step; 0 writes the initial checkpoint", kSteps},
    Setting{"schedule_steps", &C::schedule_steps, kCountOrZero, kKept, "N",
            "length of the rate schedule (default: --steps)"},
    Setting{"seed", &C::seed, kAny, kFixed, "N", "seed of the initial weights and of the order of samples",
            Commands(Command::train) | Command::generate},
    Setting{"dtype", &C::dtype, kAny, kFixed, "fp32|bf16|fp64", "type of weights and activations",
            kMeshes | Command::bench_kernels},
    Setting{"grad_wire", &C::grad_wire, kAny, kKept, "fp32|bf16|fp64",
            "type of gradients in transfers (default: dtype)", kPlans},
    Setting{"wire_format", &C::wire_format, kAny, kKept, "bf16|fp8|fp8_block|mxfp8|nvfp4",
            "matrices are stored and gathered in this number format (docs/formats.md)", kPlans},
    Setting{"wire_rules", &C::wire_rules, kAny, kKept, "NAME=FORMAT,...",
            "formats by matrix name, which may be a shell pattern; the last match counts", kPlans},
    Setting{"wire_format_backward", &C::wire_format_backward, kAny, kKept, "bf16|fp8|fp8_block|mxfp8|nvfp4",
            "backward passes gather matrices in this number format (default: as forward)", kPlans},
    Setting{"wire_rules_backward", &C::wire_rules_backward, kAny, kKept, "NAME=FORMAT,...",
            "formats of backward passes by matrix name, as --wire-rules", kPlans},
    Setting{"gemm_format", &C::gemm_format, kAny, kKept, "bf16|fp8|fp8_block|mxfp8|nvfp4",
            "number format of matrix products; GPUs: bf16, fp8, fp8_block", kPlans},
    Setting{"gemm_rules", &C::gemm_rules, kAny, kKept, "NAME=FORMAT,...",
            "formats of products by matrix name, as --wire-rules", kPlans},
    Setting{"fp8_scaling", &C::fp8_scaling, kAny, kKept, "delayed|current",
            "fp8 products: scales from the amaxes of earlier steps, or from a matrix's own amax", kPlans},
    Setting{"fp8_recipe", &C::fp8_recipe, kAny, kKept, "hybrid|e4m3",
            "fp8 products: gradients are E5M2, or all matrices are E4M3", kPlans},
    Setting{"fp8_history", &C::fp8_history, kHistory, kKept, "N",
            "delayed scaling: number of earlier steps that it uses", kSteps},
    Setting{"fp8_amax", &C::fp8_amax, kAny, kKept, "newest|greatest",
            "delayed scaling: which amax of these steps counts", kSteps},
    Setting{"fp8_margin", &C::fp8_margin, kMargin, kKept, "N",
            "delayed scaling: scales leave room for 2^N times the amax", kSteps},
    Setting{"tp_wire_format", &C::tp_wire_format, kAny, kKept, "bf16|fp8",
            "format of the activations that sequence parallelism gathers for fp8 products", kPlans},
    Setting{"lr", &C::lr, kNotNegative, kKept, "X", "highest learning rate"},
    Setting{"min_lr", &C::min_lr, kNotNegative, kKept, "X", "learning rate of the last step of a cosine schedule"},
    Setting{"warmup_steps", &C::warmup_steps, kCountOrZero, kKept, "N", "steps of linear warm-up"},
    Setting{"lr_schedule", &C::lr_schedule, kAny, kKept, "constant|cosine", "shape after the warm-up"},
    Setting{"beta1", &C::beta1, kBelowOne, kKept, "X", "AdamW: decay of the first moment"},
    Setting{"beta2", &C::beta2, kBelowOne, kKept, "X", "AdamW: decay of the second moment"},
    Setting{"eps", &C::eps, kPositive, kKept, "X", "AdamW: added to the root of the second moment"},
    Setting{"weight_decay", &C::weight_decay, kNotNegative, kKept, "X", "AdamW: decoupled decay of matrices"},
    Setting{"clip", &C::clip, kNotNegative, kKept, "X", "largest norm of the gradient; 0: no clipping"},
    Setting{"hidden_dropout", &C::hidden_dropout, kBelowOne, kKept, "P",
            "dropout of the outputs of attention and of the feed-forward part", kPlans},
    Setting{"embedding_dropout", &C::embedding_dropout, kBelowOne, kKept, "P", "dropout of the embeddings", kPlans},
    Setting{"mask_documents", &C::mask_documents, kAny, kKept, "on|off", "attention and positions restart at documents",
            Commands(Command::train) | Command::evaluate},
    Setting{"recompute", &C::recompute, kAny, kKept, "none|selective|full|auto", "activations to recompute in backward",
            kPlans},
    Setting{"activation_budget", &C::activation_budget, kTextOrNumber, kKept, "BYTES",
            "bytes of activations that --recompute auto may keep", kPlans},
    Setting{"sequence_parallel", &C::sequence_parallel, kAny, kKept, "on|off",
            "shard activations outside the tensor-parallel parts by tokens (default: on with --tp above 1)", kPlans},
    Setting{"tp_chunks", &C::tp_chunks, kTextOrNumber, kKept, "auto|N",
            "sequence parallelism: products are computed in at most N chunks of tokens (auto: by size)", kPlans},
    Setting{
        "tp_overlap", &C::tp_overlap, kAny, kRun, "on|off",
        "sequence parallelism: tokens travel in pieces beside the products (default: on if the pieces are long enough)",
        kPlans},
    Setting{"moe_aux", &C::moe_aux, kAny, kKept, "layer|pooled", "experts: auxiliary loss by layer, or pooled", kSteps},
    Setting{"router_z_loss", &C::router_z_loss, kNotNegative, kKept, "X", "experts: coefficient of the z loss", kSteps},
    Setting{"expert_room", &C::expert_room, kPositive, kRun, "X", "experts on GPUs: memory for X times the even load",
            kPlans},
    Setting{"expert_bias_rate", &C::expert_bias_rate, kShare, kKept, "X",
            "experts: change of a router's bias in each step (default: 0.001 for routers with biases)", kPlans},
    Setting{"expert_capacity", &C::expert_capacity, kNotNegative, kKept, "X",
            "experts: drop rows of an expert beyond this multiple of the mean in a microbatch; 0: drop none", kPlans},
    Setting{"expert_counts", &C::expert_counts, kCountOrZero, kRun, "N",
            "steps between lines of metrics with the counts of each expert; 0: none"},
    Setting{"reduce_order", &C::reduce_order, kAny, kKept, "sequential|hierarchical",
            "add gradients in rank order, or first within each node", kPlans},
    Setting{"ranks_per_node", &C::ranks_per_node, kCountOrZero, kKept, "N",
            "ranks of a node, for --reduce-order hierarchical", kPlans},
    Setting{"zero", &C::zero, kAny, kKept, "on|off", "shard the optimizer state over replicas (ZeRO-1)", kPlans},
    Setting{"embedding", &C::embedding, kAny, kKept, "auto|gather|rows",
            "gather the table over gtp, or exchange the rows of the tokens; auto: by bytes", kPlans},
    Setting{"gather_budget", &C::gather_budget, kTextOrNumber, kRun, "BYTES|min|auto",
            "memory for gathered weights, such as 2GB", kBudgets},
    Setting{"reduce_budget", &C::reduce_budget, kTextOrNumber, kRun, "BYTES|min|auto", "memory for gradients in flight",
            kBudgets},
    Setting{"coalesce", &C::coalesce, kTextOrNumber, kRun, "BYTES",
            "combine neighbouring weights into transfers of up to this size", kPlans},
    Setting{"deterministic", &C::deterministic, kAny, kRun, "on|off",
            "on GPUs: sums without atomics; every repetition and gtp degree gives the same bits (slower)", kSteps},
    Setting{"pushes", &C::pushes, kAny, kRun, "on|off",
            "GPUs of a host copy weights and gradients into each other's memory; off: NCCL moves them", kSteps},
    Setting{"cuda_graph", &C::cuda_graph, kAny, kRun, "on|off",
            "on GPUs: launch steps that follow their schedule as one graph, captured from the first such step", kSteps},
    Setting{"peak_flops", &C::peak_flops, kNotNegative, kRun, "X",
            "flops per second of a rank's processor in --dtype, for mfu; 0: known for H100 and H200 in bf16", kSteps},
    Setting{"debug_poison", &C::debug_poison, kAny, kRun, "on|off", "fill free buffers with NaN"},
    Setting{"debug_delays", &C::debug_delays, kCountOrZero, kRun, "SEED",
            "seed of random communication delays; 0: no delays"},
    Setting{"debug_suppress", &C::debug_suppress, kAny, kRun, "STEP[:TIMES],...",
            "suppress the update of these steps this many times (default: once); the next attempt counts"},
    Setting{"trace_step", &C::trace_step, kCountOrZero, kRun, "N", "write the timeline of this step; 0: of no step"},
    Setting{"save_every", &C::save_every, kCountOrZero, kKept, "N", "steps between checkpoints; 0: only the last step"},
    Setting{"keep", &C::keep, kCountOrZero, kRun, "N", "number of newest checkpoints to keep; 0: all"},
    Setting{"resume", &C::resume, kAny, kRun, "PATH|latest", "resume from a checkpoint"},
    Setting{"eval_every", &C::eval_every, kCountOrZero, kRun, "N", "steps between evaluations; 0: only at the end"},
    Setting{"timeout_s",
            &C::timeout_s,
            {.low = 0.001, .high = 1e6},
            kRun,
            "X",
            "longest wait for a rank, seconds",
            Commands(Command::train) | kFrozen},
    Setting{"out", &C::out, kAny, kRun, "FOLDER", "folder of the run"},
};

constexpr std::array kReserved{
    ReservedSetting{"cp", "1", "context parallelism"},
    ReservedSetting{"pp", "1", "pipeline parallelism"},
    ReservedSetting{"attention_dropout", "0", "dropout of attention's probabilities"},
};

template <typename E>
struct Word {
  E value;
  std::string_view name;
};
constexpr std::array kBackends{Word<Backend>{Backend::local, "local"}, Word<Backend>{Backend::mpi, "mpi"},
                               Word<Backend>{Backend::nccl, "nccl"}};
constexpr std::array kRateShapes{Word<train::RateShape>{train::RateShape::constant, "constant"},
                                 Word<train::RateShape>{train::RateShape::cosine, "cosine"}};
constexpr std::array kReduceOrders{Word<ReduceOrder>{ReduceOrder::sequential, "sequential"},
                                   Word<ReduceOrder>{ReduceOrder::hierarchical, "hierarchical"}};
constexpr std::array kRecomputes{Word<RecomputeSetting>{RecomputeSetting::none, "none"},
                                 Word<RecomputeSetting>{RecomputeSetting::selective, "selective"},
                                 Word<RecomputeSetting>{RecomputeSetting::full, "full"},
                                 Word<RecomputeSetting>{RecomputeSetting::automatic, "auto"}};
constexpr std::array kLookups{Word<Lookup>{Lookup::automatic, name_of(Lookup::automatic)},
                              Word<Lookup>{Lookup::gather, name_of(Lookup::gather)},
                              Word<Lookup>{Lookup::rows, name_of(Lookup::rows)}};
constexpr std::array kDTypes{Word<DType>{DType::fp32, "fp32"}, Word<DType>{DType::bf16, "bf16"},
                             Word<DType>{DType::fp64, "fp64"}};

constexpr Word<Format> word_of_format(Format format) {
  return {format, name_of(format)};
}
constexpr std::array kFormats{word_of_format(Format::bf16), word_of_format(Format::fp8),
                              word_of_format(Format::fp8_block), word_of_format(Format::mxfp8),
                              word_of_format(Format::nvfp4)};

constexpr std::array kFp8Scalings{Word<nn::Fp8Scaling>{nn::Fp8Scaling::delayed, "delayed"},
                                  Word<nn::Fp8Scaling>{nn::Fp8Scaling::current, "current"}};
constexpr std::array kFp8Recipes{Word<quant::Fp8Recipe>{quant::Fp8Recipe::hybrid, "hybrid"},
                                 Word<quant::Fp8Recipe>{quant::Fp8Recipe::e4m3, "e4m3"}};
constexpr std::array kAmaxChoices{Word<quant::AmaxChoice>{quant::AmaxChoice::newest, "newest"},
                                  Word<quant::AmaxChoice>{quant::AmaxChoice::greatest, "greatest"}};

constexpr const auto& words_of(nn::Fp8Scaling) {
  return kFp8Scalings;
}
constexpr const auto& words_of(quant::Fp8Recipe) {
  return kFp8Recipes;
}
constexpr const auto& words_of(quant::AmaxChoice) {
  return kAmaxChoices;
}
constexpr std::array kMoeAuxes{Word<nn::MoeAux>{nn::MoeAux::layer, name_of(nn::MoeAux::layer)},
                               Word<nn::MoeAux>{nn::MoeAux::pooled, name_of(nn::MoeAux::pooled)}};

constexpr const auto& words_of(nn::MoeAux) {
  return kMoeAuxes;
}
constexpr const auto& words_of(Backend) {
  return kBackends;
}
constexpr const auto& words_of(train::RateShape) {
  return kRateShapes;
}
constexpr const auto& words_of(ReduceOrder) {
  return kReduceOrders;
}
constexpr const auto& words_of(RecomputeSetting) {
  return kRecomputes;
}
constexpr const auto& words_of(Lookup) {
  return kLookups;
}
constexpr const auto& words_of(DType) {
  return kDTypes;
}
constexpr const auto& words_of(Format) {
  return kFormats;
}

template <typename E>
std::string_view word_of(E value) {
  for (const auto& word : words_of(value))
    if (word.value == value) return word.name;
  throw Error("a setting holds value {}, which has no name", static_cast<int>(value));
}

[[noreturn]] void refuse(const std::string& where, const json& value, const std::string& expected) {
  throw InputError("{}: got {}, expected {}", where, base::shown(value), expected);
}

std::string describe(const Range& range, const std::string& kind) {
  const auto number = [](double x) { return fmt::format("{}", x); };
  std::string text = kind;
  const double none = std::numeric_limits<double>::max();
  if (range.low != -none) text += (range.open_low ? " above " : " of at least ") + number(range.low);
  if (range.high < kMax32) text += (range.open_high ? " and below " : " and at most ") + number(range.high);
  if (range.high == kMax32) text += " and at most 2147483647";
  return text;
}

void check_range(double value, const Range& range, const json& got, const std::string& where, const std::string& kind) {
  const bool low = range.open_low ? value > range.low : value >= range.low;
  const bool high = range.open_high ? value < range.high : value <= range.high;
  if (!low || !high || !std::isfinite(value)) refuse(where, got, describe(range, kind));
}

struct Place {  // arguments of the following overloads, except the value
  const Range& range;
  const std::string& where;
  bool may_be_empty = false;
};

void put(std::string& to, const json& value, const Place& at) {
  if (at.range.low == 0 && value.is_number_unsigned()) {
    to = value.dump();
    return;
  }
  if (!value.is_string() || (value.get_ref<const std::string&>().empty() && !at.may_be_empty))
    refuse(at.where, value, at.may_be_empty ? "a text" : "a non-empty text");
  to = value.get<std::string>();
}
void put(std::vector<std::string>& to, const json& value, const Place& at) {
  std::vector<std::string> words;
  for (const json& word : value.is_array() ? value : json::array({value})) {
    if (!word.is_string() && !word.is_number()) refuse(at.where, value, "PREFIX, or a list W1 PREFIX1 W2 PREFIX2 ...");
    words.push_back(word.is_string() ? word.get<std::string>() : word.dump());
    if (words.back().empty()) refuse(at.where, value, "prefixes that are not empty");
  }
  to = std::move(words);
}
void put(bool& to, const json& value, const Place& at) {
  if (!value.is_boolean() && value != "on" && value != "off") refuse(at.where, value, "on or off");
  to = value.is_boolean() ? value.get<bool>() : value == "on";
}
void put(std::int64_t& to, const json& value, const Place& at) {
  if (!value.is_number_integer()) refuse(at.where, value, describe(at.range, "an integer"));
  check_range(value.get<double>(), at.range, value, at.where, "an integer");
  to = value.get<std::int64_t>();
}
void put(std::uint64_t& to, const json& value, const Place& at) {
  const bool negative = value.is_number_integer() && !value.is_number_unsigned() && value.get<std::int64_t>() < 0;
  if (!value.is_number_integer() || negative) refuse(at.where, value, "an integer from 0 to 18446744073709551615");
  to = value.get<std::uint64_t>();
}
void put(double& to, const json& value, const Place& at) {
  if (!value.is_number()) refuse(at.where, value, describe(at.range, "a number"));
  check_range(value.get<double>(), at.range, value, at.where, "a number");
  to = value.get<double>();
}
template <typename E>
requires std::is_enum_v<E>
void put(E& to, const json& value, const Place& at) {
  std::string names;
  for (const auto& word : words_of(E{})) {
    if (value.is_string() && value.get_ref<const std::string&>() == word.name) {
      to = word.value;
      return;
    }
    names += (names.empty() ? "" : ", ") + std::string(word.name);
  }
  refuse(at.where, value, "one of " + names);
}
template <typename E>
void put(std::optional<E>& to, const json& value, const Place& at) {
  put(to.emplace(), value, at);
}

// Returns the JSON value of a flag's text. A text that is not a number becomes a JSON string, which put() refuses.
template <typename T>
json json_of_text(const std::string& text) {
  T number{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  const bool whole = error == std::errc{} && stopped == end && !text.empty();
  return whole && std::isfinite(static_cast<double>(number)) ? json(number) : json(text);
}

template <typename T>
requires(!std::is_enum_v<T>) json get(const T& value) {
  return value;
}
template <typename E>
requires std::is_enum_v<E> json get(E value) {
  return word_of(value);
}
template <typename E>
json get(const std::optional<E>& value) {
  return value ? get(*value) : json();
}

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
  const bool is_list = setting.name.find("_rules") != std::string_view::npos;  // rules may be an empty text
  std::visit(
      [&](auto member) {
        put(config.*member, value, Place{.range = setting.range, .where = where, .may_be_empty = is_list});
      },
      setting.field);
  config.given.insert(std::string(setting.name));
}

void set_from_text(TrainConfig& config, const Setting& setting, const std::vector<std::string>& words,
                   const std::string& where) {
  const bool list = std::holds_alternative<std::vector<std::string> TrainConfig::*>(setting.field);
  if (words.empty() || (!list && words.size() != 1))
    refuse(where, words, words.empty() ? "a value" : "one value; it is given more than once");
  json value = words[0];
  if (list) value = words;
  if (std::holds_alternative<std::int64_t TrainConfig::*>(setting.field)) value = json_of_text<std::int64_t>(words[0]);
  if (std::holds_alternative<std::uint64_t TrainConfig::*>(setting.field))
    value = json_of_text<std::uint64_t>(words[0]);
  if (std::holds_alternative<double TrainConfig::*>(setting.field)) value = json_of_text<double>(words[0]);
  set_from_json(config, setting, value, where);
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
  const json value = std::visit([&](auto member) { return get(config.*member); }, setting.field);
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
