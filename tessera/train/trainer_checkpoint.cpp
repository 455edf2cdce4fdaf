#include "tessera/train/trainer_checkpoint.h"

#include "tessera/base/error.h"
#include "tessera/comm/kernels.h"

namespace tessera::train {
namespace {

// This rank's state part of each buffer of a parameter that is stored: calls visit(kind, type, data).
template <typename Visit>
void for_each_buffer(Trainer& trainer, shard::ParameterId id, Visit visit) {
  shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
  visit(Kind::weight, parameter.types.model, parameter.state_weight());
  if (parameter.has_master()) visit(Kind::master, parameter.types.accumulator, parameter.master.data());
  if (!parameter.spec.trainable) return;
  Optimizer::Moments& moments = trainer.optimizer().moments(id);
  visit(Kind::exp_avg, parameter.types.accumulator, moments.exp_avg.data());
  visit(Kind::exp_avg_sq, parameter.types.accumulator, moments.exp_avg_sq.data());
}

// Each element once: who updates it writes it; of what every replica updates the first one, and of what is replicated
// over tp x gtp too, its first rank.
layout::LocalLayout written_part(const shard::ShardedParameter& parameter, const shard::Parallel& parallel) {
  const bool first = parallel.tp_rank() == 0 && parallel.gtp_rank() == 0;
  if (!parameter.splits_state() && parallel.dp_rank() != 0) return {};
  if (!parameter.spec.sharded && !first) return {};
  return parameter.local_state;
}

void load_parameter(Trainer& trainer, shard::ParameterId id, const CheckpointReader& reader) {
  shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
  const bool moments = reader.has_moments(), master = reader.has_master();
  for_each_buffer(trainer, id, [&](Kind kind, base::DType type, void* data) {
    if ((kind == Kind::exp_avg || kind == Kind::exp_avg_sq) && !moments) return;
    if (kind == Kind::master && !master) {
      comm::cast(parameter.state_weight(), parameter.types.model, data, type, parameter.state_elements());
      return;
    }
    reader.read({.name = parameter.spec.name,
                 .kind = kind,
                 .dtype = type,
                 .dims = parameter.spec.dims,
                 .local = parameter.local_state,
                 .data = data});
  });
  trainer.runtime().publish(id);
}

}  // namespace

void save_trainer(Trainer& trainer, const std::filesystem::path& folder, std::int64_t step, nlohmann::json state) {
  state["updates"] = trainer.optimizer().updates();
  CheckpointContents contents{.step = step, .state = std::move(state), .tensors = {}};
  for (shard::ParameterId id : trainer.runtime().by_name()) {
    const shard::ShardedParameter& parameter = trainer.runtime().parameter(id);
    const layout::LocalLayout part = written_part(parameter, trainer.parallel());
    for_each_buffer(trainer, id, [&](Kind kind, base::DType type, const void* data) {
      contents.tensors.push_back({.name = parameter.spec.name,
                                  .kind = kind,
                                  .dtype = type,
                                  .dims = parameter.spec.dims,
                                  .local = part,
                                  .data = data});
    });
  }
  write_checkpoint(folder, contents, *trainer.parallel().world);
}

void load_trainer(Trainer& trainer, const CheckpointReader& reader) {
  for (shard::ParameterId id = 0; id < trainer.runtime().size(); ++id) load_parameter(trainer, id, reader);
  const nlohmann::json& state = reader.state();
  trainer.optimizer().set_updates(
      reader.has_moments() && state.contains("updates") ? state.at("updates").get<std::int64_t>() : 0);
}

}  // namespace tessera::train
