// Makes the command line that resumes a run from its latest checkpoint.
#pragma once
#include <set>
#include <string>
#include <string_view>

#include "tessera/rendezvous/launcher.h"
#include "tessera/settings/resolved_run.h"

namespace tessera::launch {

// The changes to the command if the run resumes on another mesh.
struct ResumeChanges {
  std::string from = "latest";  // name of the checkpoint from which the run resumes
  std::set<std::string> kept;   // settings that a resumed run normally takes from the checkpoint, and that the command
                                // sets to other values
  std::string before;           // environment variables in front of the command, as "NAME=VALUE "
};

// Returns the command that resumes a run from a checkpoint in its folder. The command contains the settings that a
// resumed run takes from its command line (OnResume::command_line), if the user gave them. All other settings come from
// the checkpoint, for example the learning-rate schedule. The command leaves out trace_step. `program` is the name by
// which this program was called. `launch` describes the launcher. The command calls the same launcher, without the
// launcher's other options. With `changes`, the command also contains all settings of the run's mesh, except ranks.
std::string resume_command(const settings::ResolvedRun& run, std::string_view program, const rendezvous::Launch& launch,
                           const ResumeChanges* changes = nullptr);

// Returns whether the command calls a launcher.
bool calls_launcher(const rendezvous::Launch& launch);

// Quotes a text so that a POSIX shell reads it as one word.
std::string shell_word(const std::string& text);

}  // namespace tessera::launch
