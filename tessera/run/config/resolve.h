// Checks of settings, in the order in which their inputs become known. Each function is pure: it returns the settings
// with more of them filled in, or throws an InputError that names the settings, their values and valid values. The data
// is checked when it is opened (data.h).
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/run/config/config.h"
#include "tessera/shard/format_policy.h"

namespace tessera::run {

// 1. The settings alone. Checks that required settings are given and that types, rates and sizes fit together. Fills in
// schedule_steps and grad_wire.
TrainConfig resolve_settings(TrainConfig config);

// The part of step 1 that benchmarks also need. Throws InputError for --cuda-graph with settings that a graph cannot
// follow.
void check_graph(const TrainConfig& config);

// 2. The mesh. `world_size`: number of ranks that a launcher started; nullopt for `local`. Fills in ranks and dp, so
// that tp * gtp * dp == ranks. Checks that global_batch is a multiple of micro_batch * gtp * dp. With unused places
// (places.h), `ranks` is the number of active places, a launcher may start a rank for each active place or for each
// place, and global_batch may be any number.
TrainConfig resolve_ranks(TrainConfig config, std::optional<std::int64_t> world_size);
// Returns whether --dead, --idle or --tp-spares leaves places without a rank.
bool has_unused_places(const TrainConfig& config);
// Returns the number of replicas of a mesh with unused places if --dp is not given: the smallest that has all places of
// --dead and --idle, and a place for each of --ranks.
std::int64_t nominal_replicas(const TrainConfig& config);
// Returns "1 process was started" or "3 processes were started".
std::string started_text(std::int64_t processes);
// Returns " (mpirun -n 4 tessera train ...)", the command that starts this number of processes. Returns "" for backends
// that start their own processes.
std::string start_text(Backend backend, std::int64_t ranks);
// Returns "4 ranks (tp 2 x gtp 2 x dp 1)" for resolved settings.
std::string mesh_text(const TrainConfig& config);
// Returns the degrees of both grids by name: tp, gtp, dp, and for a model with experts etp, ep, egtp, edp.
std::vector<std::pair<std::string, std::int64_t>> degrees_of(const TrainConfig& config);
// Returns, by domain of nn::rank_layout, the number of consecutive ranks whose gradients are added first in a
// reduction. 1: all gradients are added in rank order.
std::vector<int> ranks_of_node(const TrainConfig& config);
// Returns the number formats of weights in storage and transfers. Embedding and output layer are bf16 unless a rule
// names them.
shard::FormatPolicy wire_policy(const TrainConfig& config);
// Returns the formats in which backward passes read weights: the forward formats unless settings differ.
shard::FormatPolicy backward_policy(const TrainConfig& config);
// Returns the formats of weights in products. Embedding and output layer are bf16 unless a rule names them.
shard::FormatPolicy product_policy(const TrainConfig& config);
struct WeightFormats {
  quant::Format wire = quant::Format::bf16;  // format in storage and transfers
  bool has_backward_weight = false;  // whether backward passes read another weight, which is also stored and sent
  quant::Format product = quant::Format::bf16;  // in products
  bool is_matrix = true;                        // vectors have no number formats
};
// Returns the number formats of every parameter by name. Matrices have the formats of the policies. Other parameters
// have bf16, which here means the type of --dtype. `config`: with tp and seq_len filled in. Throws InputError for a
// format that a parameter cannot have.
std::map<std::string, WeightFormats> weight_formats(const TrainConfig& config, const models::ModelConfig& model);
// Returns whether a setting applies only to fp8 products, or to products whose tokens travel over tp, and these
// products are missing.
bool is_of_missing_products(const TrainConfig& config, std::string_view setting);
// Returns the greatest number of chunks of a product (nn::ProductOptions::tp_chunks). Throws InputError if --tp-chunks
// is neither auto nor a number above 0.
std::int64_t tp_chunks_of(const TrainConfig& config);
// Returns the tokens of a microbatch and the lookup of the embedding. `config`: with seq_len filled in.
shard::RowReads embedding_reads(const TrainConfig& config);

// 3. The model. Fills in seq_len, which is at most the model's longest sequence. Parallel degrees need not divide any
// size of the model. Throws InputError for --embedding rows if the table is also the output layer's weight, and for a
// rule of number formats that matches no parameter of the model.
TrainConfig resolve_model(TrainConfig config, const models::ModelConfig& model);

// Returns one line for each setting that is allowed but deserves a warning at the start of the run.
std::vector<std::string> warnings_of(const TrainConfig& config);

}  // namespace tessera::run
