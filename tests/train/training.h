// Runs small trainings inside a test. Every rank of the mesh is a thread, samples are synthetic, and results are
// logical tensors.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tessera/models/decoder/decoder_config.h"
#include "tessera/models/decoder/tp_parts.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/train/trainer.h"

namespace tessera::train::testing {

struct RunOptions {
  models::DecoderConfig model;
  int tp = 1, gtp = 1, dp = 1;
  std::optional<nn::ExpertDegrees> experts;                        // degrees of a model with experts
  std::optional<shard::RankLayout> ranks;                          // replaces tp, gtp and dp
  std::function<int(const shard::ParameterSpec& spec)> domain_of;  // RuntimeOptions::domain_of
  bool zero = false;                                               // whether the optimizer's state is sharded over dp
  bool split_masters = false;                                      // RuntimeOptions::split_masters
  std::vector<int> nodes;                                          // RuntimeOptions::nodes
  bool least_memory = false;                                       // whether both budgets are kMinimum
  std::optional<std::int64_t> gather_budget;                       // if set, the budget of gathered weights
  quant::DType dtype = quant::DType::fp32;
  bool sequence_parallel = false;
  nn::TokenSplit split;
  std::optional<models::TpParts> parts;
  std::vector<std::int64_t> block_ends;  // not empty: blocks run in ranges with these ends, and a last range
  nn::Recompute recompute = nn::Recompute::none;
  shard::Lookup embedding = shard::Lookup::gather;
  int blocks = 12;  // blocks of a step, of one sequence each; a rank has blocks / (gtp * dp) microbatches
  std::int64_t seq_len = 8;
  int steps = 3;
  bool documents = false;  // whether sequences have document boundaries, at which attention and positions restart
  bool masked = false;     // whether every target is masked
  bool on_gpu = false;     // true: one rank on the first GPU
  bool graph = false;      // TrainerOptions::graph
  std::int64_t coalesce_bytes = 0;
  bool one_microbatch = false;  // RuntimeOptions::one_microbatch
  runtime::ReplayOptions replay;
  std::shared_ptr<const ops::UpdateRule> rule = ops::make_rule({.weight_decay = 0.1});
  std::shared_ptr<const ops::UpdatePolicy> update = nullptr;  // null: `rule` updates all parameters
  quant::Format wire = quant::Format::bf16;  // number format in which a bf16 model's matrices are stored and gathered
  // Number format of products with these matrices and with the output layer.
  quant::Format products = quant::Format::bf16;
  std::vector<shard::FormatRule> product_rules;  // of the products of single matrices
  bool only_codes = false;                       // StackChoice::only_native
  std::optional<quant::Format> wire_backward;    // number format of backward weights; absent: `wire`
  nn::ProductOptions product_options;
  nn::DropoutOptions dropout;
  std::uint64_t seed = 5;  // StepOptions::seed
  double clip = 1.0;
  double expert_bias_rate = 0, expert_capacity = 0;
  double expert_room = 0;  // StepOptions::expert_room
  // With expert_room: called before each forward pass on the thread of every rank. May raise the counters of the room.
  // The counter of training steps then suppresses steps, and `suppressed` must be empty.
  std::function<void(const nn::ExpertRoom& room)> before_forward;
  // Number of steps that are left pending when the next step is enqueued, once delayed scaling has its scales. Absent:
  // each step is finished before the next step is enqueued.
  std::optional<int> ahead;
  double lr_growth = 0;             // growth of the rate per step; the first rate is 1e-2
  std::set<int> spoiled, left_out;  // steps whose gradient is not finite; steps that the run omits
  std::map<int, int> suppressed;    // key: step; number of its attempts that a counter of the last rank suppresses
  std::function<void(int rank, const std::string& group, const std::string& op, std::int64_t sequence)> inject;
  std::set<int> evaluated;  // steps whose samples are evaluated before the step
  // Called before and after each step (numbered from 0) is enqueued, on the thread of every rank.
  std::function<void(Trainer&trainer, int step)> before_step, after_step;
  std::function<void(const StepResult& result)> on_result;  // called on rank 0 for each attempt of each step, in order
  std::function<void(Trainer& trainer)> at_end;             // called after all steps on the thread of every rank
};

struct RunResult {
  std::vector<double> losses, norms;  // value of rank 0, like the next two members
  std::vector<bool> skipped;
  std::int64_t graph_steps = 0;
  std::int64_t updates = 0;
  std::vector<float> scales;  // state of delayed scaling at the end
  // By name: "weight/NAME", "master/NAME" if it is separate, "main_grad/NAME", and for each state plane "exp_avg/NAME".
  // The elements of the logical tensor are in row-major order, converted exactly to fp64. For a weight in a number
  // format, "weight/NAME" is its master, and there is no "master/NAME".
  std::map<std::string, std::vector<double>> tensors;
  // For each suppressed attempt: its step, and the number of steps that were enqueued after it.
  std::vector<std::pair<int, int>> suppressed;
  bool operator==(const RunResult&) const = default;
};

// Return models with sizes that the degrees of the meshes do not divide. In biased_model, q, k and v have a bias. In
// normed_model, the heads of q and k have norms and 6 elements. A norm of 2 elements is badly conditioned: one ulp in
// the initial embedding changes the gradient's norm by 2e-8 after 17 steps on one rank.
models::DecoderConfig odd_model();
models::DecoderConfig biased_model();
models::DecoderConfig normed_model();
models::DecoderConfig sparse_model();  // 7 experts in each layer
// Like dots1: a dense layer, and a layer with 9 experts in 3 groups and a shared expert.
models::DecoderConfig balanced_model();
RunResult run(const RunOptions& options);
// Returns a sample of the text on which runs are trained, as a batch of one sequence.
models::Batch sample(const RunOptions& options, std::int64_t number);

// Sets elements of a parameter's master, which are given by logical row and column. Then casts and publishes the
// weight. Collective: every rank calls this function before its first step or between two steps.
void set_elements(Trainer& trainer, const std::string& name,
                  const std::function<float(std::int64_t row, std::int64_t col, float old)>& value);

}  // namespace tessera::train::testing
