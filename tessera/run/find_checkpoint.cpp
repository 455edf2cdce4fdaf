#include "tessera/run/find_checkpoint.h"

#include <string_view>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/run/convert/convert.h"
#include "tessera/run/convert/hf_folder.h"
#include "tessera/run/run_directory.h"

namespace tessera::run {
namespace {

namespace fs = std::filesystem;

struct Words {
  std::string_view flag, expected, for_file;
};

Words words_of(CheckpointUse use) {
  switch (use) {
    case CheckpointUse::resume:
      return {"--resume: ", "the folder of a checkpoint or of a run", ""};
    case CheckpointUse::convert:
      return {"", "the folder of a checkpoint, of a run, or of a model in Hugging Face's form", ""};
    case CheckpointUse::inspect:
      return {"", "the folder of a checkpoint or of a run, or PREFIX of PREFIX.bin and PREFIX.idx",
              "; python/prepare_text.py makes these files from text"};
  }
  throw Error("unknown use of a checkpoint");
}

void refuse_hf_folder(const fs::path& path, CheckpointUse use) {
  std::error_code ignored;
  if (use == CheckpointUse::convert || !fs::is_regular_file(path / "config.json", ignored) || !holds_hf_weights(path) ||
      !checkpoint_in(path).empty())
    return;
  if (use == CheckpointUse::resume)
    throw InputError(
        "--resume: '{}' is a Hugging Face folder, expected a checkpoint: --init {} starts from its weights",
        path.string(), path.string());
  throw InputError(
      "'{}' is a Hugging Face folder, expected a checkpoint: tessera convert {} CHECKPOINT makes one from it",
      path.string(), path.string());
}

void refuse_run_without_checkpoint(const fs::path& path, const Words& words) {
  std::error_code ignored;
  const RunDirectory run(path);
  if (fs::is_regular_file(run.config(), ignored) && fs::is_directory(run.checkpoints(), ignored) &&
      checkpoint_in(path).empty() && checkpoint::list_set_aside(run.checkpoints()).empty())
    throw InputError(
        "{}'{}' holds a run that ended before its first checkpoint: train --resume latest --out {} starts it again",
        words.flag, path.string(), path.string());
}

}  // namespace

fs::path find_checkpoint(const fs::path& path, CheckpointUse use) {
  const Words words = words_of(use);
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    throw InputError("{}'{}': the file or folder does not exist, expected {}", words.flag, path.string(),
                     words.expected);
  if (!fs::is_directory(path, ignored))
    throw InputError("{}'{}' is a file, expected {}{}", words.flag, path.string(), words.expected, words.for_file);
  refuse_hf_folder(path, use);
  refuse_run_without_checkpoint(path, words);
  try {
    return checkpoint::resolve_checkpoint(path);
  } catch (const InputError& error) {
    throw InputError("{}{}", words.flag, error.what());
  }
}

fs::path checkpoint_before(const fs::path& checkpoint) {
  fs::path before;
  for (const checkpoint::StepFolder& other : checkpoint::list_checkpoints(checkpoint.parent_path())) {
    if (other.path.filename() == checkpoint.filename()) return before;
    before = other.path;
  }
  return {};
}

}  // namespace tessera::run
