// The number formats of weights. All functions are pure.
#pragma once
#include <map>
#include <string>

#include "tessera/models/model_config.h"
#include "tessera/settings/config.h"
#include "tessera/shard/formats/format_table.h"

namespace tessera::settings {

// Returns the number formats of weights in storage and transfers, in the storage that backward passes read, and in
// products. Embedding and output layer are bf16 unless a rule names them. Settings of products also choose the kernels
// of stacks.
shard::FormatPolicies policies_of(const FormatSettings& formats);
shard::FormatPolicies policies_of(const TrainConfig& config);
// Sets the recipe of nvfp4 products to its defaults where it is absent, if the settings choose such products.
void complete_recipe(FormatSettings& formats);
// Returns whether the policy or one of its rules chooses the format.
bool has_format(const shard::FormatPolicy& policy, quant::Format format);
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
// The bytes of the masters of the whole model beside its weights. Each element counts once. `whole`: masters in fp32.
struct MasterBytes {
  std::int64_t split = 0, whole = 0;
};
MasterBytes master_bytes(const TrainConfig& config, const models::ModelConfig& model);
// Throws InputError for: a rule that does not match a parameter of the model; a number format or a rule without an
// effect; a format that --dtype, the backend or a parameter does not support; --masters split with a weight whose
// master cannot be split.
void check_formats(const TrainConfig& config, const models::ModelConfig& model);

}  // namespace tessera::settings
