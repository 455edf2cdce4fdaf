// The checkpoint that a user means by a path.
#pragma once
#include <filesystem>

namespace tessera::run {

enum class CheckpointUse { resume, convert, inspect };

// As checkpoint::resolve_checkpoint. Errors (InputError) also say what the path is instead of a checkpoint, and which
// command or flag takes it.
std::filesystem::path find_checkpoint(const std::filesystem::path& path, CheckpointUse use);

// Returns the last checkpoint before one that cannot be read, in the same folder; an empty path if there is none.
std::filesystem::path checkpoint_before(const std::filesystem::path& checkpoint);

}  // namespace tessera::run
