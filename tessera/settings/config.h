// The settings of a training run: flags of `tessera train`, or keys of its --config file. These pure functions compute
// the settings of a run from a command line, in this order:
//   parse_train_flags (parse.h)          flags over file over defaults
//   merge_stored (resume.h)              with --resume: the settings of the checkpoint's run under the new flags
//   resolve (resolved_run.h)             consistency checks, and values that follow from others; returns a ResolvedRun
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/nn/delayed_scales.h"
#include "tessera/nn/experts/router_loss.h"
#include "tessera/nn/layers/dropout.h"
#include "tessera/ops/optimizer/adamw.h"
#include "tessera/ops/optimizer/matrices/muon.h"
#include "tessera/quant/dtype.h"
#include "tessera/quant/formats/format.h"
#include "tessera/settings/mesh_settings.h"
#include "tessera/settings/text/byte_size.h"
#include "tessera/settings/text/written.h"
#include "tessera/shard/formats/format_policy.h"
#include "tessera/shard/ways/lookup.h"
#include "tessera/train/update/lr_schedule.h"

namespace tessera::settings {

using FormatRules = Written<std::vector<shard::FormatRule>>;
// Which rule updates a parameter.
enum class OptimizerRule { adamw, muon };
using OptimizerRules = Written<std::vector<base::NameRule<OptimizerRule>>>;
using NumberRules = Written<std::vector<base::NameRule<double>>>;

enum class Backend { local, mpi, nccl };
enum class ReduceOrder { sequential, hierarchical };
// native: a product that would be decoded (quant/formats/product_kernel.h) is refused.
enum class GemmKernels { automatic, native };
// The type in which the optimizer stores its moments. fp32: the type of the masters.
enum class Moments { fp32, bf16 };
// How the fp32 masters of bf16 weights are stored. split: 16 bits beside each element of the weight, which is the rest
// of the master (ops/optimizer/split_master.h). automatic: split where the weight allows it, otherwise fp32.
enum class Masters { automatic, fp32, split };
using shard::Lookup;
// The values of nn::Recompute, and `automatic`, with which predict/recompute_choice.h chooses the policy of each
// block.
enum class RecomputeSetting { none, selective, full, automatic };

std::string_view name_of(Backend value);
std::string_view name_of(ReduceOrder value);
using shard::name_of;
std::string_view name_of(RecomputeSetting value);

// Number formats of weights, and rules for the formats of single parameters by name (shard/formats/format_policy.h).
struct FormatSettings {
  quant::Format wire = quant::Format::bf16;  // of stored and gathered weights
  FormatRules wire_rules;
  // Like wire and wire_rules, for the weights that backward passes read. If wire_backward is absent, backward passes
  // have the formats of forward passes, changed by wire_rules_backward. Forward passes do not read wire_rules_backward.
  std::optional<quant::Format> wire_backward;
  FormatRules wire_rules_backward;
  quant::Format products = quant::Format::bf16;  // of matrix products
  FormatRules product_rules;
  GemmKernels kernels = GemmKernels::automatic;
  // ProductOptions::hadamard and ProductOptions::rounding. Absent: their defaults. Runs without nvfp4 products have no
  // values.
  std::optional<bool> nvfp4_hadamard;
  std::optional<nn::GradientRounding> nvfp4_rounding;
};

// Defaults are those of the command line. settings.h has the table of keys: a key names a setting in JSON, and its flag
// has dashes instead of underscores (micro_batch, --micro-batch).
struct TrainConfig {
  std::string model;               // a name under configs/, or a path (models::find_model_config)
  std::string init;                // Hugging Face folder whose weights the run starts from; empty: random weights
  std::vector<std::string> data;   // PREFIX, or W1 PREFIX1 W2 PREFIX2 ...
  std::vector<std::string> valid;  // held-out data in the form of data::parse_held_out; may be empty

  Backend backend = Backend::local;
  std::int64_t threads = 1;  // intra-op threads of a rank
  // On GPUs: repeated runs give the same bits, but are slower; on CPUs, runs always give the same bits.
  bool deterministic = false;
  bool pushes = true;       // whether GPUs of a host write to each other's arenas
  bool cuda_graph = false;  // on GPUs: whether steps are launched as a graph
  // Peak flops per second of a rank's processor, for mfu; 0: looked up by the GPU's name (telemetry/peak_flops.h).
  double peak_flops = 0;
  MeshSettings mesh;

  std::int64_t micro_batch = 1, global_batch = 24;  // numbers of sequences
  std::int64_t seq_len = 0;                         // 0: the model's max_position_embeddings
  std::int64_t steps = -1;                          // last step; 0 writes the initial checkpoint; required
  std::uint64_t seed = 1;

  quant::DType dtype = quant::DType::fp32;
  std::optional<quant::DType> grad_wire;  // absent: dtype
  FormatSettings formats;
  // Without tp_chunks, tp_overlap, hadamard and rounding, which are other settings.
  nn::ProductOptions products;

  train::LrSchedule rates{.schedule_steps = -1};  // schedule_steps: -1: the value of `steps`
  ops::AdamW adamw{.weight_decay = 0.1};          // beta1, beta2, eps and weight_decay are settings
  // By name of a parameter: factors of the learning rate, and weight decays.
  NumberRules lr_rules, decay_rules;
  // The rule of matrices between the embedding and the output layer, and rules by name of a parameter.
  OptimizerRule optimizer = OptimizerRule::adamw;
  OptimizerRules optimizer_rules;
  ops::Muon muon;                 // momentum, nesterov, steps and scale are settings
  std::optional<double> muon_lr;  // highest learning rate of Muon; absent: that of `rates`
  Moments moments = Moments::fp32;
  Masters masters = Masters::automatic;
  double clip = 1.0;  // largest norm of the gradient
  nn::DropoutOptions dropout;

  bool mask_documents = false;
  RecomputeSetting recompute = RecomputeSetting::none;
  Written<std::int64_t> activation_budget;  // for recompute automatic: largest bytes of activations, such as 20GB
  std::optional<bool> sequence_parallel;    // absent: true if tp > 1; resolve sets it if tp > 1
  // "auto" or a number: the largest number of chunks of a product whose tokens tp ranks exchange
  // (nn/parallel/token_chunks.h).
  std::string tp_chunks = "auto";
  // Whether tp ranks exchange these tokens in pieces while products run. Absent: has_long_pieces.
  std::optional<bool> tp_overlap;
  nn::RouterLossOptions router;    // aux and z_coefficient are settings
  double expert_room = 1.5;        // on GPUs: allocated rows of experts, divided by the rows of even loads
  double expert_bias_rate = -1;    // change of a router's bias in a step; -1: 0.001 if the model's routers have biases
  double expert_capacity = 0;      // largest number of rows of an expert and block, divided by the mean; 0: no limit
  std::int64_t expert_counts = 0;  // steps between lines of metrics with the counts of each expert; 0: none

  Written<Budget> gather_budget{.text = "auto"}, reduce_budget{.text = "auto"};  // such as min, auto, 300MB
  // Adjacent weights travel as one transfer if their total size is at most this. The default is about the size at which
  // a message's transfer time equals its latency, on CPUs and between GPUs.
  Written<std::int64_t> coalesce{.value = 1 << 20, .text = "1MiB"};
  // Order of the sums of gradients over gtp (shard/ways/reduction_tree.h).
  ReduceOrder reduce_order = ReduceOrder::sequential;
  std::int64_t ranks_per_node = 0;       // for hierarchical: the number of ranks whose gradients are added first
  bool zero = true;                      // whether the optimizer state is sharded over dp
  Lookup embedding = Lookup::automatic;  // how the gtp ranks receive the embedding table
  bool debug_poison = false;             // whether free buffers are filled with NaN
  std::int64_t debug_delays = 0;         // seed of random communication delays; 0: no delays
  Written<std::map<std::int64_t, int>> debug_suppress;  // steps whose updates are suppressed (text/step_times.h)
  std::int64_t trace_step = 0;                          // step whose timeline is written; 0: no step

  std::int64_t save_every = 0, keep = 0;  // save_every: steps between checkpoints; 0: only the last step is saved.
                                          // keep: number of checkpoints to keep; 0: all
  std::string resume;                     // checkpoint path, or "latest"; empty: a new run
  std::int64_t eval_every = 0;            // steps between evaluations on `valid`; 0: one evaluation at the end
  std::int64_t eval_samples = 0;          // samples of a held-out set in evaluations before the last step; 0: all
  bool eval_first = false;                // whether a run also evaluates before step 1
  std::optional<double> save_minutes;     // minutes between checkpoints; absent: only save_every counts
  std::optional<double> stop_minutes;     // minutes after which the run has saved and ended; absent: no limit
  std::int64_t keep_every = 0;            // `keep` does not remove checkpoints of multiples of this step; 0: no step
  std::int64_t save_failures = 3;         // number of failed saves in a row that ends the run
  double timeout_s = 60.0;                // time limit of every wait for other ranks, in seconds
  std::string out;                        // folder of the run

  std::set<std::string> given;  // keys that a flag or the --config file sets; not a setting
};

}  // namespace tessera::settings
