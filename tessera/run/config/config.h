// The settings of a training run: what `tessera train` takes as flags, or as keys of its --config file.
// The way from a command line to settings that are in force, each step a pure function:
//   parse_train_flags (parse.h)          flags over file over defaults
//   merge_stored (resume.h)              with --resume: what a checkpoint's run was, under the new flags
//   resolve_settings, resolve_ranks, resolve_model (resolve.h)
//                                        ranges, defaults that follow from others, and what must fit together
#pragma once
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/nn/delayed_scales.h"
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

// Defaults are the command line's. A member's name is its key in JSON; its flag has dashes for underscores
// (micro_batch, --micro-batch).
struct TrainConfig {
  std::string model;               // a name under configs/, or a path (models::find_model_config)
  std::string init;                // Hugging Face folder whose weights the run starts from; empty: random weights
  std::vector<std::string> data;   // PREFIX, or W1 PREFIX1 W2 PREFIX2 ...
  std::vector<std::string> valid;  // the same, held out; empty: none

  Backend backend = Backend::local;
  std::int64_t ranks = 0;      // 0: tp * gtp * dp, or what the launcher started
  std::int64_t threads = 1;    // intra-op threads of a rank
  bool deterministic = false;  // on GPUs: the same bits again, which costs time; on CPUs that is always so
  bool pushes = true;          // GPUs of a host write to each other's arenas
  bool cuda_graph = false;     // on GPUs: steps are launches of a graph
  std::int64_t tp = 1, gtp = 1;
  std::int64_t dp = 0;  // 0: ranks / (tp * gtp)

  std::int64_t micro_batch = 1, global_batch = 24;  // in sequences
  std::int64_t seq_len = 0;                         // 0: the model's max_position_embeddings
  std::int64_t steps = -1;                          // where to stop; 0 writes the initial checkpoint; must be given
  std::int64_t schedule_steps = -1;                 // length of the rate schedule; -1: steps
  std::uint64_t seed = 1;

  quant::DType dtype = quant::DType::fp32;
  std::optional<quant::DType> grad_wire;            // absent: dtype
  quant::Format wire_format = quant::Format::bf16;  // weights are stored and gathered in this number format ...
  std::string wire_rules;                           // ... unless a rule says otherwise (shard/format_policy.h)
  // The same of what backward passes read. An absent format: as in forward passes, by the rules of these.
  std::optional<quant::Format> wire_format_backward;
  std::string wire_rules_backward;
  quant::Format gemm_format = quant::Format::bf16;  // and multiplied in this one ...
  std::string gemm_rules;                           // ... unless a rule says otherwise
  // Of fp8 products (nn::ProductOptions).
  nn::Fp8Scaling fp8_scaling = nn::Fp8Scaling::delayed;
  quant::Fp8Recipe fp8_recipe = quant::Fp8Recipe::hybrid;
  std::int64_t fp8_history = 16;
  quant::AmaxChoice fp8_amax = quant::AmaxChoice::greatest;
  std::int64_t fp8_margin = 0;
  quant::Format tp_wire_format = quant::Format::bf16;  // of activations that travel over tp to products

  double lr = 3e-4, min_lr = 0.0;
  std::int64_t warmup_steps = 0;
  train::RateShape lr_schedule = train::RateShape::cosine;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8, weight_decay = 0.1;
  double clip = 1.0;  // largest norm of the gradient

  bool mask_documents = false;
  RecomputeSetting recompute = RecomputeSetting::none;
  std::string activation_budget;  // bytes, as 20GB: what recompute automatic keeps to
  bool sequence_parallel = false;

  std::string gather_budget = "auto", reduce_budget = "auto";  // min, auto, or bytes as 300MB (parse_budget)
  // Where a message's latency is about what as many bytes take, with CPUs and between GPUs.
  std::string coalesce = "1MiB";                       // neighbours travel together up to this (parse_byte_size)
  ReduceOrder reduce_order = ReduceOrder::sequential;  // of gradients over gtp (shard/reduction_tree.h)
  std::int64_t ranks_per_node = 0;                     // hierarchical: what adds up first
  bool zero = true;                                    // the optimizer's state is cut over dp
  Lookup embedding = Lookup::automatic;                // how its table reaches the gtp ranks
  bool debug_poison = false;                           // buffers are filled with NaN when they are free
  std::int64_t debug_delays = 0;                       // not 0: seed of random delays of communication
  std::string debug_suppress;                          // steps whose updates are suppressed (step_times.h)
  std::int64_t trace_step = 0;                         // whose timeline is written; 0: none

  std::int64_t save_every = 0, keep = 0;  // steps between checkpoints, 0: only the last; checkpoints kept, 0: all
  std::string resume;                     // path of a checkpoint, or "latest"; empty: a new run
  std::int64_t eval_every = 0;            // steps between evaluations on `valid`, 0: only at the end
  double timeout_s = 60.0;                // of every wait for other ranks, seconds
  std::string out;                        // folder of the run

  std::set<std::string> given;  // keys given by a flag or the file; not itself a setting
};

}  // namespace tessera::run
