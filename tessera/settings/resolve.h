// Steps of resolve (resolved_run.h): checks of settings, and settings that follow from others. Each function is pure.
// An InputError names the settings, their values and valid values. The data is checked when it is opened (data.h).
// resolve_mesh.h has the step between the two steps of this file.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"
#include "tessera/shard/formats/format_table.h"

namespace tessera::settings {

struct Setting;  // settings.h

// Step 1 of a training run: the settings alone. Checks that required settings are given and that types, rates and sizes
// are consistent. Sets schedule_steps, grad_wire and, for several tp ranks, sequence_parallel.
TrainConfig resolve_settings(TrainConfig config);

// The part of step 1 that benchmarks also need. Throws InputError if --cuda-graph is combined with settings that a
// graph does not support.
void check_graph(const TrainConfig& config);
// Returns whether --cuda-graph on is accepted with the other settings. Throws nothing.
bool accepts_graph(const TrainConfig& config);

// Returns a number for each domain of nn::rank_layout: how many consecutive ranks add their gradients among themselves
// before the sum over all ranks. 1: all gradients are added in rank order.
std::vector<int> ranks_of_node(const TrainConfig& config, bool has_experts);
// Returns the number formats of weights in storage and transfers. Embedding and output layer are bf16 unless a rule
// names them.
shard::FormatPolicy wire_policy(const TrainConfig& config);
// Returns the number formats in which backward passes read weights. These are the formats of wire_policy unless
// settings choose others.
shard::FormatPolicy backward_policy(const TrainConfig& config);
// Returns the number formats of weights in products. Embedding and output layer are bf16 unless a rule names them.
shard::FormatPolicy product_policy(const TrainConfig& config);
struct WeightFormats {
  quant::Format wire = quant::Format::bf16;     // format in storage and transfers
  quant::Format product = quant::Format::bf16;  // format in products
};
// Returns the number formats of every parameter by name. Matrices have the formats of the policies. Other parameters
// have Format::bf16, which means the type of --dtype here. `config` has tp and seq_len filled in. Throws InputError for
// a format that a parameter cannot have.
std::map<std::string, WeightFormats> weight_formats(const TrainConfig& config, const models::ModelConfig& model);
// Returns the shares of the number formats, from the same settings. Throws the same errors.
shard::FormatTable format_table(const TrainConfig& config, const models::ModelConfig& model);
// Returns whether the other settings leave the setting without an effect (Setting::needs).
bool is_without_meaning(const TrainConfig& config, const Setting& setting);
// Returns how the embedding is read: the number of tokens in a microbatch, and the lookup.
shard::RowReads embedding_reads(const TrainConfig& config);

// Step 3: the model. Sets seq_len and expert_bias_rate, and checks that seq_len is at most the model's longest
// sequence. Parallel degrees need not divide any size of the model. Throws InputError for: --embedding rows if the
// table is also the output layer's weight; a rule of number formats that does not match a parameter of the model; a
// number format or a rule without an effect.
TrainConfig resolve_model(TrainConfig config, const models::ModelConfig& model);

// Returns one line for each setting that is allowed but deserves a warning at the start of the run.
std::vector<std::string> warnings_of(const TrainConfig& config);

}  // namespace tessera::settings
