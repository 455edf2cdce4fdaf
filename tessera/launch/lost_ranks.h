// Describes how a run continues after some of its ranks have ended: the places that become dead, and the command that
// resumes the run without these ranks.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/rendezvous/launcher.h"
#include "tessera/settings/resolved_run.h"

namespace tessera::launch {

struct LostRanks {
  std::vector<int> ranks = {};   // ranks that have ended
  settings::PlaceMap dead = {};  // dead places: those that the run already had, and the places of the lost ranks
  std::string checkpoint = {};   // newest complete checkpoint; empty: the run starts again from its first step
  std::optional<settings::ResolvedRun> run = {};  // the smaller run; absent: the run cannot continue
  std::string reason = {};                        // why the run cannot continue
  std::string command = {};                       // command that resumes the run without the lost ranks
  // Name of the launcher, whose other options the user must add to the command. Empty: no launcher.
  std::string launcher = {};
};

// Returns the run as it continues without the ranks `ranks`. The places of the lost ranks become dead. If the number
// formats of the run do not allow smaller tp groups, more ranks become idle: the other ranks of the same tp group, or
// of the same replica. CUDA graphs and hierarchical sums are switched off.
// --tp-spares and --reduced-batch become auto if their numbers do not fit the smaller mesh. Throws InputError if a rank
// does not exist. If no mesh is possible, throws the InputError of the first mesh that was tried.
settings::ResolvedRun without_ranks(const settings::ResolvedRun& run, const std::vector<int>& ranks);

// The inputs of a command that are not settings.
struct CommandPlace {
  std::string program = {};        // name by which this program was called
  rendezvous::Launch launch = {};  // the launcher of the ranks
  int devices = 0;                 // number of visible GPUs
  std::string visible = {};        // value of CUDA_VISIBLE_DEVICES; empty: all GPUs are visible
};

// Returns how a run continues without the ranks `ranks`. `started_from` is the checkpoint from which the run resumed,
// or empty. This checkpoint is used if the run has not saved a checkpoint. Throws InputError if a rank does not exist,
// or if two checkpoints have the same step. The command sets every setting that a resumed run would take from that
// checkpoint with another value.
LostRanks lost_ranks(const settings::ResolvedRun& run, const std::vector<int>& ranks, const CommandPlace& place,
                     const std::filesystem::path& started_from = {});

// Returns the lines that are printed for the user: the dead places, the checkpoint and the command. Each line ends with
// a newline.
std::string lost_ranks_text(const LostRanks& lost);
// Returns these lines without the first one, which names the ranks and the dead places.
std::string continuation_text(const LostRanks& lost);

// Writes resume-without.json into the run's folder `out`.
void write_lost_ranks(const LostRanks& lost, const std::filesystem::path& out);

// Reads the settings of a run from the run's folder, and returns the result of lost_ranks. The backend in the settings
// determines the launcher. Throws InputError if the folder does not contain a run.
LostRanks lost_ranks_of_run(const std::filesystem::path& run, const std::vector<int>& ranks, std::string_view program);

}  // namespace tessera::launch
