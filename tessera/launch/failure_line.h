// The line that a failed command prints before it ends.
#pragma once
#include <string>
#include <string_view>

namespace tessera::launch {

// Returns advice for the user, as the end of an error line, if the message says that a disk is full. Returns "" for
// other messages. `is_training`: the command is `train`, so a later run can resume.
std::string full_disk_advice(std::string_view message, bool is_training);

// Returns "tessera: rank 2: MESSAGE" with the advice for a full disk. If the rank failed because it waited for other
// ranks until the time limit, the line also contains advice for the user.
std::string failure_line(int rank, std::string_view message);

}  // namespace tessera::launch
