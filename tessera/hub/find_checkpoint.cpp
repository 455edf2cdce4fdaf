#include "tessera/hub/find_checkpoint.h"

#include <fmt/ranges.h>

#include <string_view>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/hub/convert/convert.h"
#include "tessera/hub/convert/hf_folder.h"
#include "tessera/hub/run_directory.h"

namespace tessera::hub {
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

// Returns the path without links and without a slash at the end.
fs::path resolved(const fs::path& path) {
  std::error_code code;
  const fs::path canonical = fs::weakly_canonical(path, code);
  const fs::path result = code ? path.lexically_normal() : canonical;
  return result.has_filename() ? result : result.parent_path();
}

// Returns a text like "step-00000004, step-00000008". If there are many folders, the text has the last ones.
std::string last_names(const std::vector<fs::path>& folders) {
  constexpr std::size_t most = 5;
  std::vector<std::string> names;
  for (const fs::path& folder : folders) names.push_back(folder.filename().string());
  if (names.size() <= most) return fmt::format("{}", fmt::join(names, ", "));
  return fmt::format("{} folders, the last are {}", names.size(), fmt::join(names.end() - most, names.end(), ", "));
}

// Returns the checkpoints that a user may have meant by `path`, which holds none, as the end of an error message.
std::string checkpoints_near(const fs::path& path) {
  const fs::path parent = resolved(path).parent_path();
  for (const fs::path& folder : {parent, RunDirectory(parent).checkpoints()}) {
    std::vector<fs::path> found;
    for (const checkpoint::StepFolder& one : checkpoint::list_checkpoints(folder)) found.push_back(one.path);
    if (!found.empty()) return fmt::format("; checkpoints in {}: {}", folder.string(), last_names(found));
  }
  return "";
}

}  // namespace

fs::path find_checkpoint(const fs::path& path, CheckpointUse use) {
  const Words words = words_of(use);
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    throw InputError("{}'{}': the file or folder does not exist, expected {}{}", words.flag, path.string(),
                     words.expected, checkpoints_near(path));
  if (!fs::is_directory(path, ignored))
    throw InputError("{}'{}' is a file, expected {}{}", words.flag, path.string(), words.expected, words.for_file);
  refuse_hf_folder(path, use);
  refuse_run_without_checkpoint(path, words);
  try {
    return checkpoint::resolve_checkpoint(path);
  } catch (const InputError& error) {
    const bool is_step = checkpoint::step_of_folder(resolved(path).filename().string()).has_value();
    throw InputError("{}{}{}", words.flag, error.what(), is_step ? checkpoints_near(path) : "");
  }
}

std::string other_checkpoints(const fs::path& checkpoint, CheckpointUse use) {
  const fs::path folder = resolved(checkpoint);
  const auto own_step = checkpoint::step_of_folder(folder.filename().string());
  std::vector<fs::path> others, before;
  for (const checkpoint::StepFolder& other : checkpoint::list_checkpoints(folder.parent_path())) {
    if (other.path == folder) continue;
    others.push_back(other.path);
    if (own_step && other.step < *own_step) before.push_back(other.path);
  }
  if (others.empty()) return "";
  if (before.empty()) return fmt::format(" (other checkpoints there: {})", last_names(others));
  return fmt::format(" ({}{} {} the checkpoint before it)", use == CheckpointUse::resume ? "--resume " : "",
                     before.back().string(), use == CheckpointUse::resume ? "uses" : "is");
}

}  // namespace tessera::hub
