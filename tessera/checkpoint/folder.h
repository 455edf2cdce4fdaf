// The folders of checkpoints: CHECKPOINTS/step-00000020/. A folder with such a name is complete, because the folder is
// written under another name, synced to disk and then renamed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// A folder that is created beside its final path and moved there with one rename. Until commit(), nothing is visible at
// the final path. A crash leaves only a folder FINAL.partial-TOKEN, which readers ignore and the next writer removes.
//
// Some file systems cannot exchange two names. There, commit() gives an existing folder the name FINAL.aside-TOKEN
// before the new folder takes the name FINAL. If a crash comes between these renames, FINAL.aside-TOKEN still counts as
// the checkpoint: the functions below list it, and the next writer gives it the name FINAL again.
class PartialFolder {
 public:
  // Creates the partial folder. First removes the partial folders that crashed writers left for `final_path`, and gives
  // a replaced folder its name back. If `final_path` is the folder of a step, does the same for the other steps. Throws
  // Error with the path and the system's reason.
  explicit PartialFolder(const std::filesystem::path& final_path);
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder();  // removes the partial folder unless it was committed

  const std::filesystem::path& path() const { return path_; }
  // Syncs the folder to disk and moves it to its final path. A folder at that path is replaced and then removed; the
  // replacement is atomic if the file system can exchange two names. The caller must have synced the files in the
  // folder. Throws Error.
  void commit();

 private:
  std::filesystem::path final_;
  std::filesystem::path path_;
  bool committed_ = false;
};

// Convert between a step and its folder name, "step-00000020". The second function returns nullopt for any other name.
std::string step_folder_name(std::int64_t step);
std::optional<std::int64_t> step_of_folder(std::string_view name);

struct StepFolder {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// Returns the complete checkpoints in `folder`, by step. Returns an empty list if the folder does not exist.
std::vector<StepFolder> list_checkpoints(const std::filesystem::path& folder);
// Returns the checkpoint with the highest step. Throws InputError if two checkpoints have that step.
std::optional<StepFolder> latest_checkpoint(const std::filesystem::path& folder);

// Returns the checkpoint for a path that the user gave. Returns `path` itself if it holds a manifest. Otherwise the
// result is the latest checkpoint in `path` or in its folder checkpoints/. Throws InputError if neither folder has a
// checkpoint, or if both have one.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

// Removes all checkpoints but the latest `keep` (at least 1) and those of multiples of `keep_every` (0: of no step).
// Each checkpoint is renamed before its files are removed, so that no partial checkpoint is visible. Must not run
// concurrently for one folder. Returns the removed steps.
std::vector<std::int64_t> prune_checkpoints(const std::filesystem::path& folder, int keep, std::int64_t keep_every = 0);

// A run that resumes from an earlier step sets aside the checkpoints after that step. When the run's first new
// checkpoint is complete, the run removes the checkpoints that are set aside. To set a checkpoint aside means to rename
// it to step-00000030.aside-TOKEN. The checkpoint stays complete and can be read by its path, but the functions above
// ignore it. The functions below must not run concurrently for one folder.

// Sets aside the checkpoints after `step`, the latest first. Returns their steps.
std::vector<std::int64_t> set_aside_after(const std::filesystem::path& folder, std::int64_t step);
// Returns the checkpoints that are set aside, by step.
std::vector<StepFolder> list_set_aside(const std::filesystem::path& folder);
// If `path` is a checkpoint that is set aside, renames it to the folder name of its step. If another checkpoint has
// this name, first sets that checkpoint aside.
void restore_set_aside(const std::filesystem::path& path);
// Removes all checkpoints that are set aside. Returns their steps.
std::vector<std::int64_t> remove_set_aside(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
