#include "tessera/train/trainer_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/checkpoint/typed_json.h"
#include "tessera/quant/elementwise.h"
#include "tessera/train/host_view.h"
#include "tessera/train/untrained_values.h"
#include "tessera/train/update/master_values.h"

namespace tessera::train {
namespace {

// Calls visit(kind, type, data) for this rank's state part of each stored buffer of a parameter, except its master.
// `weight` is the address of the weight in the model's type.
template <typename Visit>
void for_each_buffer(Trainer& trainer, schedule::ParameterId id, void* weight, Visit visit) {
  visit(checkpoint::Kind::weight, trainer.runtime().parameter(id).types.model, weight);
  trainer.optimizer().for_each_plane(id, [&](const ops::StatePlane& plane, base::Buffer& buffer) {
    visit(checkpoint::Kind(plane.name), plane.type, buffer.data());
  });
}

// A checkpoint does not depend on the number format: it stores a weight's rounded master instead of the encoded weight.
base::Buffer weight_of_master(const shard::ShardedParameter& parameter, const shard::ParallelGroups& parallel) {
  base::Buffer weight(static_cast<std::size_t>(shard::bytes_of(parameter.state_elements(), parameter.types.model)),
                      parallel.device);
  parallel.kernels().cast(parameter.master.data(), parameter.types.accumulator, weight.data(), parameter.types.model,
                          parameter.state_elements());
  return weight;
}

void load_parameter(Trainer& trainer, schedule::ParameterId id, const TensorSource& source) {
  shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
  const bool is_counted = !shard::counted_part(parameter).pieces.empty();
  const bool has_state = source.has_state && parameter.spec.trainable &&
                         source.has_state(parameter.spec.name, trainer.optimizer().rule_of(id));
  const std::int64_t elements = parameter.state_elements();
  const auto read = [&](const checkpoint::Kind& kind, quant::DType type, void* host) {
    source.read({.name = parameter.spec.name,
                 .kind = kind,
                 .dtype = type,
                 .dims = parameter.spec.dims,
                 .local = parameter.local_state,
                 .data = host},
                is_counted);
    if (!parameter.spec.trainable) require_finite(parameter.spec.name, type, host, elements);
  };
  const auto view_of = [&](void* data, quant::DType type) {
    return HostView(data, static_cast<std::size_t>(shard::bytes_of(elements, type)), trainer.parallel());
  };
  base::Buffer rounded;
  if (parameter.spec.encoding) rounded = weight_of_master(parameter, trainer.parallel());
  void* weight = parameter.spec.encoding ? rounded.data() : parameter.state_weight();
  for_each_buffer(trainer, id, weight, [&](const checkpoint::Kind& kind, quant::DType type, void* data) {
    if (kind.is_state() && !has_state) return;
    HostView host = view_of(data, type);
    read(kind, type, host.data());
    host.write_back();
  });
  if (parameter.has_master()) {
    HostMasters masters(parameter, trainer.parallel());
    if (source.has_masters)
      read(checkpoint::Kind::master, parameter.types.accumulator, masters.data());
    else
      quant::cast(view_of(weight, parameter.types.model).data(), parameter.types.model, masters.data(),
                  parameter.types.accumulator, elements);
    masters.store();
    WeightCast(trainer.runtime()).cast({&id, 1});
  }
  trainer.runtime().program().publish(id);
}

// Returns the settings from which delayed scaling computes its scales, except the amaxes.
nlohmann::json scaling_of(const nn::DelayedScales& scales) {
  const nn::ProductOptions& options = scales.options();
  std::vector<int> greatest;  // index: matrix; the greatest number of its element type
  for (const quant::Element element : scales.elements()) greatest.push_back(static_cast<int>(greatest_of(element)));
  return {{"matrices", scales.names()},
          {"greatest", greatest},
          {"history", options.history},
          {"newest", options.choice == quant::AmaxChoice::newest},
          {"margin", options.margin}};
}

// Returns delayed scaling's state, with each number as its bits.
nlohmann::json scales_state(nn::DelayedScales& scales, base::Lane& compute) {
  std::vector<std::uint32_t> bits;
  for (const float value : scales.state(compute)) bits.push_back(std::bit_cast<std::uint32_t>(value));
  nlohmann::json state = scaling_of(scales);
  state["values"] = bits;
  return state;
}

std::string state_of(const checkpoint::CheckpointReader& reader) {
  return (reader.folder() / checkpoint::kManifestFile).string() + ": state";
}

struct StoredScales {
  nlohmann::json scaling;  // scaling_of the trainer that wrote the checkpoint
  std::vector<float> values;
};

// Returns nullopt if the state has no scales. Throws InputError for a member of a wrong type.
std::optional<StoredScales> stored_scales(const checkpoint::CheckpointReader& reader) {
  const nlohmann::json& state = reader.state();
  if (!state.is_object() || !state.contains("delayed_scaling")) return std::nullopt;
  const std::string where = state_of(reader) + ": delayed_scaling";
  StoredScales stored{.scaling = state["delayed_scaling"], .values = {}};
  for (const std::int64_t bits :
       checkpoint::integers(checkpoint::array_member(stored.scaling, "values", where), "values", where)) {
    if (bits > std::int64_t{0xFFFFFFFF})
      throw InputError("{}: values: got {}, expected 32 bits of a number", where, bits);
    stored.values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
  }
  for (const nlohmann::json& name : checkpoint::array_member(stored.scaling, "matrices", where))
    if (!name.is_string()) throw InputError("{}: matrices: got {}, expected a name", where, base::shown(name));
  checkpoint::integers(checkpoint::member(stored.scaling, "greatest", where), "greatest", where);
  checkpoint::integer_member(stored.scaling, "history", where);
  if (const auto& margin = checkpoint::member(stored.scaling, "margin", where); !margin.is_number_integer())
    throw InputError("{}: margin: got {}, expected an integer", where, base::shown(margin));
  if (const auto& newest = checkpoint::member(stored.scaling, "newest", where); !newest.is_boolean())
    throw InputError("{}: newest: got {}, expected true or false", where, base::shown(newest));
  stored.scaling.erase("values");
  return stored;
}

// Loads the scales. If the checkpoint's run scaled other matrices or used other settings, the next step starts a new
// history.
void load_scales(nn::DelayedScales& scales, base::Lane& compute, const checkpoint::CheckpointReader& reader) {
  scales.reset(compute);
  const std::optional<StoredScales> stored = stored_scales(reader);
  if (scales.size() == 0 || !stored || stored->scaling != scaling_of(scales)) return;
  try {
    scales.set_state(stored->values, compute);
  } catch (const InputError& error) {
    throw InputError("{}: delayed_scaling: values: {}", state_of(reader), error.what());
  }
}

// Returns the kinds of the rule's planes in checkpoints.
std::vector<checkpoint::Kind> kinds_of(const ops::UpdateRule& rule) {
  std::vector<checkpoint::Kind> kinds;
  for (const ops::StatePlane& plane : rule.planes(quant::DType::fp32)) kinds.emplace_back(plane.name);
  return kinds;
}

// Returns the number of updates whose gradients are in the rules' stored state.
std::int64_t stored_updates(const checkpoint::CheckpointReader& reader, const ops::UpdatePolicy& policy) {
  bool has_state = false;
  for (const auto& rule : policy.rules) has_state |= reader.has_state(kinds_of(*rule));
  if (!has_state) return 0;
  const std::int64_t updates = checkpoint::integer_member(reader.state(), "updates", state_of(reader));
  if (updates > reader.step())
    throw InputError("{}: updates: got {}, expected at most {}, the steps of the checkpoint", state_of(reader), updates,
                     reader.step());
  return updates;
}

}  // namespace

void save_trainer(Trainer& trainer, const std::filesystem::path& folder, std::int64_t step, nlohmann::json state) {
  TESSERA_CHECK(trainer.pending_steps() == 0, "cannot save a checkpoint while {} steps are pending",
                trainer.pending_steps());
  state["updates"] = trainer.optimizer().updates();
  if (trainer.scales().are_known())
    state["delayed_scaling"] = scales_state(trainer.scales(), *trainer.parallel().compute);
  // These objects must live until everything is written. `views` refers to `weights`, the rounded masters of encoded
  // parameters.
  std::vector<HostView> views;
  std::vector<base::Buffer> weights;
  std::vector<HostMasters> masters;
  checkpoint::CheckpointContents contents{.step = step, .state = std::move(state), .tensors = {}};
  for (schedule::ParameterId id : trainer.runtime().parameters().by_name()) {
    shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
    const layout::LocalLayout part = shard::counted_part(parameter);
    const auto add = [&](const checkpoint::Kind& kind, quant::DType type, const void* host) {
      contents.tensors.push_back({.name = parameter.spec.name,
                                  .kind = kind,
                                  .dtype = type,
                                  .dims = parameter.spec.dims,
                                  .local = part,
                                  .data = host});
    };
    base::Buffer rounded;
    if (parameter.spec.encoding) rounded = weight_of_master(parameter, trainer.parallel());
    void* weight = parameter.spec.encoding ? rounded.data() : parameter.state_weight();
    for_each_buffer(trainer, id, weight, [&](const checkpoint::Kind& kind, quant::DType type, const void* data) {
      const std::int64_t elements = part.pieces.empty() ? 0 : parameter.state_elements();
      views.emplace_back(data, static_cast<std::size_t>(elements) * quant::size_of(type), trainer.parallel());
      add(kind, type, views.back().data());
      if (kind != checkpoint::Kind::weight || !parameter.has_master()) return;
      if (elements > 0) masters.emplace_back(parameter, trainer.parallel());
      add(checkpoint::Kind::master, parameter.types.accumulator, elements > 0 ? masters.back().data() : nullptr);
    });
    if (!trainer.parallel().is_asynchronous()) weights.push_back(std::move(rounded));
  }
  write_checkpoint(folder, contents, *trainer.parallel().world);
}

std::int64_t checkpoint_bytes(Trainer& trainer) {
  std::int64_t bytes = 0;
  for (schedule::ParameterId id : trainer.runtime().parameters().by_name()) {
    const shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
    const std::vector<std::int64_t>& dims = parameter.spec.dims;
    const std::int64_t elements = std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
    for_each_buffer(trainer, id, nullptr, [&](const checkpoint::Kind&, quant::DType type, const void*) {
      bytes += shard::bytes_of(elements, type);
    });
    if (parameter.has_master()) bytes += shard::bytes_of(elements, parameter.types.accumulator);
  }
  return bytes;
}

void check_state(const checkpoint::CheckpointReader& reader, const ops::UpdatePolicy& policy) {
  stored_scales(reader);
  stored_updates(reader, policy);
}

std::vector<std::string> notes_of_state(const checkpoint::CheckpointReader& reader, const ops::UpdatePolicy& policy) {
  std::vector<std::set<std::string>> fresh(policy.rules.size());
  for (const checkpoint::StoredTensor& tensor : reader.manifest().tensors) {
    const std::size_t rule = policy.update_of(tensor.name, /*decays=*/true).rule;
    const std::vector<checkpoint::Kind> kinds = kinds_of(*policy.rules[rule]);
    // The state is that of another rule.
    if (tensor.kind.is_state() && std::ranges::find(kinds, tensor.kind) == kinds.end()) fresh[rule].insert(tensor.name);
  }
  std::vector<std::string> notes;
  for (std::size_t rule = 0; rule < fresh.size(); ++rule)
    if (!fresh[rule].empty())
      notes.push_back(
          fmt::format("the state of {} starts at zero for {} parameters, such as {}: the checkpoint has "
                      "their state of another update rule",
                      policy.rules[rule]->name(), fresh[rule].size(), *fresh[rule].begin()));
  return notes;
}

void load_tensors(Trainer& trainer, const TensorSource& source) {
  trainer.runtime().wait_until_idle();
  for (schedule::ParameterId id = 0; id < trainer.runtime().parameters().weights(); ++id)
    load_parameter(trainer, id, source);
}

void load_trainer(Trainer& trainer, const checkpoint::CheckpointReader& reader) {
  load_tensors(trainer,
               {.has_masters = reader.has_master(),
                .has_state = [&](const std::string& name,
                                 const ops::UpdateRule& rule) { return reader.has_state(name, kinds_of(rule)); },
                .read = [&](const checkpoint::LoadTensor& request, bool) { reader.read(request); }});
  load_scales(trainer.scales(), *trainer.parallel().compute, reader);
  trainer.optimizer().set_updates(stored_updates(reader, trainer.optimizer().policy()));
}

}  // namespace tessera::train
