// The command line that continues a run from its latest checkpoint.
#pragma once
#include <string>
#include <string_view>

#include "tessera/rendezvous/launcher.h"
#include "tessera/run/config/config.h"

namespace tessera::run {

// config: the run's resolved settings; a checkpoint in config.out stores them. The command names the settings that a
// resumed run takes from its command line (OnResume::command_line), where the user gave them; the checkpoint has all
// others: the rate schedule, say. A trace of a step is not asked for again. `program`: how this one was called.
// `launch`: who started the ranks; the command calls that launcher again, without its other options.
std::string resume_command(const TrainConfig& config, std::string_view program, const rendezvous::Launch& launch);

// Whether the command calls a launcher.
bool calls_launcher(const rendezvous::Launch& launch);

// The text as one word of a POSIX shell.
std::string shell_word(const std::string& text);

}  // namespace tessera::run
