// Finds the checkpoint that a user's path refers to.
#pragma once
#include <filesystem>

namespace tessera::run {

enum class CheckpointUse { resume, convert, inspect };

// Returns the folder that checkpoint::resolve_checkpoint finds. Throws InputError if there is no checkpoint. The
// message also names the kind of file or folder at the path, and the command or flag that accepts such a path.
std::filesystem::path find_checkpoint(const std::filesystem::path& path, CheckpointUse use);

// Returns the previous checkpoint in the folder that contains `checkpoint`, or an empty path. `checkpoint` itself need
// not be readable.
std::filesystem::path checkpoint_before(const std::filesystem::path& checkpoint);

}  // namespace tessera::run
