// How a run continues after some of its ranks have ended: the dead places, and the command that resumes without them.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/models/model_config.h"
#include "tessera/rendezvous/launcher.h"
#include "tessera/run/config/config.h"
#include "tessera/run/config/places.h"

namespace tessera::run {

struct LostRanks {
  std::vector<int> ranks = {};             // that ended
  PlaceMap dead = {};                      // dead places: those of the run and those of the lost ranks
  std::string checkpoint = {};             // newest complete checkpoint; empty: the run starts again
  std::optional<TrainConfig> config = {};  // resolved settings of the smaller run; absent: the run cannot continue
  std::string reason = {};                 // why the run cannot continue
  std::string command = {};                // resumes the run without the lost ranks
  std::string launcher = {};               // whose other options the user adds to the command; empty: no launcher
};

// Returns the settings under which a run continues without ranks. `config`: resolved. The places of the lost ranks
// become dead. If the run's formats do not allow smaller tp groups, the other ranks of the same tp group become idle
// too, or those of the same replica. CUDA graphs and hierarchical sums are switched off, and --tp-spares and
// --reduced-batch become auto where their numbers no longer fit. Throws InputError if a rank does not exist, and the
// first refusal if no mesh is possible.
TrainConfig without_ranks(const TrainConfig& config, const models::ModelConfig& model, const std::vector<int>& ranks);

// The inputs of a command, besides the settings.
struct CommandPlace {
  std::string program = {};        // name by which this program was called
  rendezvous::Launch launch = {};  // the launcher of the ranks
  int devices = 0;                 // visible GPUs
  std::string visible = {};        // CUDA_VISIBLE_DEVICES; empty: all
};

// Returns how a run continues without ranks. `started_from`: the checkpoint that the run resumed from, or empty; used
// if the run has saved none. Throws InputError if a rank does not exist or if two checkpoints have the same step.
LostRanks lost_ranks(const TrainConfig& config, const models::ModelConfig& model, const std::vector<int>& ranks,
                     const CommandPlace& place, const std::filesystem::path& started_from = {});

// Returns the lines for the user: the dead places, the checkpoint and the command. Each ends with a newline.
std::string lost_ranks_text(const LostRanks& lost);

// Writes resume-without.json into the folder of the run.
void write_lost_ranks(const LostRanks& lost, const std::filesystem::path& out);

// Reads the settings of a run from its folder, and returns the result of lost_ranks. The launcher is taken from the
// backend. Throws InputError for a folder without a run.
LostRanks lost_ranks_of_run(const std::filesystem::path& run, const std::vector<int>& ranks, std::string_view program);

}  // namespace tessera::run
