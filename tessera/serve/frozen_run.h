// Starts the ranks and builds the model for commands that run a stored model: `tessera generate` and `tessera
// evaluate`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>

#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"
#include "tessera/serve/frozen_model.h"
#include "tessera/serve/stored_model.h"
#include "tessera/settings/resolved_run.h"

namespace tessera::serve {

// Called on each rank. `inputs` is a communicator of all ranks, over which the ranks report errors of their inputs.
using RankBody = std::function<void(comm::World& world, comm::Communicator& inputs)>;
// Starts the ranks of --backend, --tp, --gtp and --dp, or joins the ranks that a launcher started. Calls `body` on each
// rank. Returns the exit code. Throws InputError for settings that contradict each other. Also throws an InputError
// that `body` throws.
int run_on_ranks(const settings::TrainConfig& command, const RankBody& body);

// Calls read() on every rank. If read() throws an InputError on one rank, all ranks throw an error
// (collective_files.h).
void together(comm::Communicator& inputs, const std::function<void()>& read);

// Throws InputError on every rank unless all ranks found the same model, checkpoint and `others` (names and values).
// Ranks may see different files under one path. Collective.
void require_same_inputs(comm::Communicator& inputs, const StoredModel& stored, nlohmann::json others);

// Returns the run of the stored model. If the command does not set the type, the weights keep the stored type.
// command.seq_len is the largest number of positions of a sequence. Throws the errors of settings::resolve.
settings::ResolvedRun frozen_run(settings::TrainConfig command, const StoredModel& stored, const comm::World& world);

// Builds the model on this rank and reads its weights. `stored` and `world` must outlive the result. Collective.
std::unique_ptr<serve::FrozenModel> make_frozen_model(comm::World& world, const settings::ResolvedRun& run,
                                                      const StoredModel& stored);

}  // namespace tessera::serve
