// The ranks and the model of a command that runs a stored model: `tessera generate` and `tessera evaluate`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>

#include "tessera/comm/communicator.h"
#include "tessera/comm/world.h"
#include "tessera/infer/frozen_model.h"
#include "tessera/run/config/config.h"
#include "tessera/run/generate/stored_model.h"

namespace tessera::run {

// `inputs`: a communicator of all ranks, over which they agree about their inputs.
using RankBody = std::function<void(comm::World& world, comm::Communicator& inputs)>;
// Starts the ranks of --backend, --tp, --gtp and --dp, or joins those of a launcher, and calls `body` on each. Returns
// the exit code. Throws InputError for settings that do not fit together, and passes on an InputError of `body`.
int run_on_ranks(const TrainConfig& command, const RankBody& body);

// Runs read() on every rank at the same time. An InputError of one rank becomes an error of all ranks
// (collective_files.h).
void together(comm::Communicator& inputs, const std::function<void()>& read);

// Returns the settings with ranks and types filled in. Experts have etp = tp, ep = 1 and egtp = gtp. config.seq_len:
// the largest number of positions of a sequence. Throws InputError as resolve_ranks and resolve_model do.
TrainConfig resolve_frozen(TrainConfig config, const StoredModel& stored, const comm::World& world);

// Builds the model on this rank and reads its weights. `stored` and `world` must outlive the result. Collective.
std::unique_ptr<infer::FrozenModel> make_frozen_model(comm::World& world, const TrainConfig& resolved,
                                                      const StoredModel& stored);

}  // namespace tessera::run
