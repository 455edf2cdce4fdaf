// Checks of settings, in the order in which what they need becomes known. Each is a pure function: it returns the
// settings with more of them filled in, or throws an InputError that names the settings, their values and what would
// fit. What the data must hold is checked where it is opened (data.h).
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

// 1. By themselves: what must be given is, what is not built yet is not asked for, types and rates fit together. Fills
// in schedule_steps and grad_wire.
TrainConfig resolve_settings(TrainConfig config);

// The part of 1 that benchmarks need: refuses --cuda-graph with settings that a graph cannot follow.
void check_graph(const TrainConfig& config);

// 2. The mesh. `world_size`: ranks that a launcher started (mpi), absent for `local`. Fills in ranks and dp, so that
// tp * gtp * dp == ranks, and checks that the global batch divides into blocks: global_batch is a multiple of
// micro_batch * gtp * dp.
TrainConfig resolve_ranks(TrainConfig config, std::optional<std::int64_t> world_size);
// "1 process was started", "3 processes were started".
std::string started_text(std::int64_t processes);
// " (mpirun -n 4 tessera train ...)", which starts as many processes; empty for backends that start their own.
std::string start_text(Backend backend, std::int64_t ranks);
// "4 ranks (tp 2 x gtp 2 x dp 1)" of resolved settings.
std::string mesh_text(const TrainConfig& config);
// Consecutive gtp ranks whose gradients are added first; 1: in rank order.
int gtp_ranks_of_node(const TrainConfig& config);
// The number formats of weights as they travel. Embedding and output layer are bf16 unless a rule says otherwise.
shard::FormatPolicy wire_policy(const TrainConfig& config);
// Those in which backward passes read them: as forward, unless settings say otherwise.
shard::FormatPolicy backward_policy(const TrainConfig& config);
// Those of products, likewise.
shard::FormatPolicy product_policy(const TrainConfig& config);
struct WeightFormats {
  quant::Format wire = quant::Format::bf16;     // as it is stored and sent
  bool has_backward_weight = false;             // backward passes read another weight, which is stored and sent too
  quant::Format product = quant::Format::bf16;  // as it is multiplied
  bool is_matrix = true;                        // vectors have no number formats
};
// The number formats of every parameter by name: what the policies say of matrices, else bf16, which stands for the
// type of --dtype here. tp and seq_len are filled in. Errors (InputError): a format that a parameter cannot have.
std::map<std::string, WeightFormats> weight_formats(const TrainConfig& config, const models::ModelConfig& model);
// Whether a setting by this name is about fp8 products, or their activations over tp, that these settings do not ask
// for.
bool is_of_missing_products(const TrainConfig& config, std::string_view setting);
// The tokens of a microbatch, seq_len filled in, and how the embedding reads them.
shard::RowReads embedding_reads(const TrainConfig& config);

// 3. The model. Fills in seq_len; it is at most the model's longest. Degrees need not divide any size of the model.
// Rows of a table that is the output layer's weight too cannot be all that is read of it. Rules of number formats name
// parameters of the model.
TrainConfig resolve_model(TrainConfig config, const models::ModelConfig& model);

// What is allowed but deserves a line at the start of the run (one string a line; none: empty).
std::vector<std::string> warnings_of(const TrainConfig& config);

}  // namespace tessera::run
