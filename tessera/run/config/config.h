// The settings of a training run: flags of `tessera train`, or keys of its --config file. Pure functions lead from a
// command line to the settings in force, in this order:
//   parse_train_flags (parse.h)          flags over file over defaults
//   merge_stored (resume.h)              with --resume: the settings of the checkpoint's run under the new flags
//   resolve_settings, resolve_ranks, resolve_model (resolve.h)
//                                        ranges, defaults that follow from other settings, and consistency checks
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/nn/delayed_scales.h"
#include "tessera/nn/experts/moe_aux.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"
#include "tessera/shard/lookup.h"
#include "tessera/train/lr_schedule.h"

namespace tessera::run {

enum class Backend { local, mpi, nccl };
enum class ReduceOrder { sequential, hierarchical };
using shard::Lookup;
// As nn::Recompute; automatic: run/recompute_choice.h.
enum class RecomputeSetting { none, selective, full, automatic };

std::string_view name_of(Backend value);
std::string_view name_of(ReduceOrder value);
using shard::name_of;
std::string_view name_of(RecomputeSetting value);

// Defaults are those of the command line. A member's name is its key in JSON; its flag has dashes instead of
// underscores (micro_batch, --micro-batch).
struct TrainConfig {
  std::string model;               // a name under configs/, or a path (models::find_model_config)
  std::string init;                // Hugging Face folder whose weights the run starts from; empty: random weights
  std::vector<std::string> data;   // PREFIX, or W1 PREFIX1 W2 PREFIX2 ...
  std::vector<std::string> valid;  // held-out data in the form of `data`; may be empty

  Backend backend = Backend::local;
  std::int64_t ranks = 0;    // 0: tp * gtp * dp, or the launcher's number
  std::int64_t threads = 1;  // intra-op threads of a rank
  bool deterministic =
      false;  // on GPUs: repeated runs give the same bits, but are slower; on CPUs, runs always give the same bits
  bool pushes = true;       // GPUs of a host write to each other's arenas
  bool cuda_graph = false;  // on GPUs: steps are launched as a graph
  double peak_flops = 0;    // per second of a rank's processor, for mfu; 0: of a known GPU (metrics/peak_flops.h)
  std::int64_t tp = 1, gtp = 1;
  std::int64_t dp = 0;                     // 0: ranks / (tp * gtp)
  std::int64_t etp = 1, ep = 1, egtp = 1;  // of a model with experts (nn::ExpertDegrees)
  // Places that do no work (places.h): dead ones, live ones that the run retires, and further live ones of tp groups
  // with dead slots ("auto", a number, or empty: none). parse_train_flags replaces the path of a file by its content.
  std::string dead, idle, tp_spares;
  std::string
      reduced_batch;  // sequences of a step for each replica with unused places: "auto", a number; empty: equal shares

  std::int64_t micro_batch = 1, global_batch = 24;  // in sequences
  std::int64_t seq_len = 0;                         // 0: the model's max_position_embeddings
  std::int64_t steps = -1;                          // last step; 0 writes the initial checkpoint; required
  std::int64_t schedule_steps = -1;                 // length of the rate schedule; -1: steps
  std::uint64_t seed = 1;

  quant::DType dtype = quant::DType::fp32;
  std::optional<quant::DType> grad_wire;            // absent: dtype
  quant::Format wire_format = quant::Format::bf16;  // number format of stored and gathered weights
  std::string wire_rules;                           // exceptions by name (shard/format_policy.h)
  // As wire_format and wire_rules, for the weights that backward passes read. Without a format, the formats of forward
  // passes apply, and these rules change them.
  std::optional<quant::Format> wire_format_backward;
  std::string wire_rules_backward;
  quant::Format gemm_format = quant::Format::bf16;  // number format of matrix products
  std::string gemm_rules;                           // exceptions by name
  // Settings of fp8 products (nn::ProductOptions).
  nn::Fp8Scaling fp8_scaling = nn::Fp8Scaling::delayed;
  quant::Fp8Recipe fp8_recipe = quant::Fp8Recipe::hybrid;
  std::int64_t fp8_history = 16;
  quant::AmaxChoice fp8_amax = quant::AmaxChoice::greatest;
  std::int64_t fp8_margin = 0;
  quant::Format tp_wire_format = quant::Format::bf16;  // format of activations that are gathered over tp for products

  double lr = 3e-4, min_lr = 0.0;
  std::int64_t warmup_steps = 0;
  train::RateShape lr_schedule = train::RateShape::cosine;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip = 1.0;                                 // largest norm of the gradient
  double hidden_dropout = 0, embedding_dropout = 0;  // probabilities

  bool mask_documents = false;
  RecomputeSetting recompute = RecomputeSetting::none;
  std::string activation_budget;  // bytes, such as 20GB, for recompute automatic
  bool sequence_parallel = false;
  std::string tp_chunks =
      "auto";               // auto or N: chunks of a product whose tokens travel over tp (nn/parallel/token_chunks.h)
  bool tp_overlap = false;  // whether these tokens travel in pieces beside the products
  nn::MoeAux moe_aux = nn::MoeAux::layer;
  double router_z_loss = 0;        // coefficient
  double expert_room = 1.5;        // on GPUs: rows of memory of experts, as a multiple of even loads
  double expert_bias_rate = -1;    // change of a router's bias in a step; -1: 0.001 if the model's routers have biases
  double expert_capacity = 0;      // rows of an expert and block, as a factor of the mean number; 0: no limit
  std::int64_t expert_counts = 0;  // steps between lines of metrics with the counts of each expert; 0: none

  std::string gather_budget = "auto", reduce_budget = "auto";  // min, auto, or bytes such as 300MB (parse_budget)
  // At about this size, the latency of a message equals its transfer time, on CPUs and between GPUs.
  std::string coalesce = "1MiB";  // adjacent weights travel as one transfer if their total size is at most this
  // Order of the sums of gradients over gtp (shard/reduction_tree.h).
  ReduceOrder reduce_order = ReduceOrder::sequential;
  std::int64_t ranks_per_node = 0;       // for hierarchical: the number of ranks whose gradients are added first
  bool zero = true;                      // whether the optimizer state is sharded over dp
  Lookup embedding = Lookup::automatic;  // how the gtp ranks receive the embedding table
  bool debug_poison = false;             // whether free buffers are filled with NaN
  std::int64_t debug_delays = 0;         // seed of random communication delays; 0: no delays
  std::string debug_suppress;            // steps whose updates are suppressed (step_times.h)
  std::int64_t trace_step = 0;           // step whose timeline is written; 0: no step

  std::int64_t save_every = 0, keep = 0;  // steps between checkpoints, 0: only the last; checkpoints to keep, 0: all
  std::string resume;                     // checkpoint path, or "latest"; empty: a new run
  std::int64_t eval_every = 0;            // steps between evaluations on `valid`, 0: only at the end
  double timeout_s = 60.0;                // limit of every wait for other ranks, seconds
  std::string out;                        // folder of the run

  std::set<std::string> given;  // keys that a flag or the file gave; not a setting itself
  bool has_experts = false;     // whether the model has experts; resolve_model sets it; not a setting itself
};

}  // namespace tessera::run
