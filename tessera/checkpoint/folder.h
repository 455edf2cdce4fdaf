// The folders of checkpoints: CHECKPOINTS/step-00000020/. A folder with such a name is complete: it is written under
// another name, synced to disk and then renamed.
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
class PartialFolder {
 public:
  // Removes the partial folders that crashed writers left for `final_path`, and for the sibling steps of a step folder.
  // Then creates the partial folder. Throws Error with the path and the system's reason.
  explicit PartialFolder(const std::filesystem::path& final_path);
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder();  // removes the partial folder unless it was committed

  const std::filesystem::path& path() const { return path_; }
  // Syncs the folder to disk and moves it to its final path. A folder at that path is replaced atomically and then
  // removed. The caller must have synced the files in the folder. Throws Error.
  void commit();

 private:
  std::filesystem::path final_;
  std::filesystem::path path_;
  bool committed_ = false;
};

// Converts between a step and its folder name, "step-00000020". Returns nullopt for any other name.
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

// Removes all checkpoints but the latest `keep` (at least 1). Each checkpoint is renamed before its files are removed,
// so that no partial checkpoint is visible. One caller at a time. Returns the removed steps.
std::vector<std::int64_t> prune_checkpoints(const std::filesystem::path& folder, int keep);

// A run that resumes from an earlier step sets aside the checkpoints after that step, until its first new checkpoint is
// complete. Setting aside is a rename to step-00000030.aside-TOKEN. The checkpoint stays complete and can be read by
// its path, but the functions above ignore it. One caller at a time.

// Sets aside the checkpoints after `step`, the latest first. Returns their steps.
std::vector<std::int64_t> set_aside_after(const std::filesystem::path& folder, std::int64_t step);
// Returns the checkpoints that are set aside, by step.
std::vector<StepFolder> list_set_aside(const std::filesystem::path& folder);
// Restores the name of `path` if it is set aside. A checkpoint that has this name is set aside first.
void restore_set_aside(const std::filesystem::path& path);
// Removes all checkpoints that are set aside. Returns their steps.
std::vector<std::int64_t> remove_set_aside(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
