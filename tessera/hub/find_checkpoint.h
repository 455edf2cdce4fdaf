// Finds the checkpoint that a user's path refers to.
#pragma once
#include <filesystem>
#include <string>

#include "tessera/base/error.h"

namespace tessera::hub {

enum class CheckpointUse { resume, convert, inspect };

// Returns the folder that checkpoint::resolve_checkpoint finds. Throws InputError if there is no checkpoint. The
// message also names the kind of file or folder at the path, and the command or flag that accepts such a path.
std::filesystem::path find_checkpoint(const std::filesystem::path& path, CheckpointUse use);

// Returns the end of an error message about a faulty checkpoint: " (--resume PATH uses the checkpoint before it)". If
// there is no earlier checkpoint, the text names the later ones. Returns "" if `checkpoint` is the only one in its
// folder.
std::string other_checkpoints(const std::filesystem::path& checkpoint, CheckpointUse use);

// Returns the result of read(). If read() throws InputError because the checkpoint is faulty, adds other_checkpoints to
// the message.
template <typename Read>
auto naming_other_checkpoints(const std::filesystem::path& checkpoint, CheckpointUse use, Read read) {
  try {
    return read();
  } catch (const InputError& error) {
    throw InputError("{}{}", error.what(), other_checkpoints(checkpoint, use));
  }
}

}  // namespace tessera::hub
