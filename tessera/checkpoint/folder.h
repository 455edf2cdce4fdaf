// The folders that checkpoints live in: CHECKPOINTS/step-00000020/. A folder with this name is complete: it was made
// aside, brought to the disk and renamed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::checkpoint {

// A folder made beside its final place and moved there in one rename. Until commit() nothing is visible at the final
// place; a crash leaves only a folder FINAL.partial-TOKEN, which readers ignore and the next writer removes.
class PartialFolder {
 public:
  // Removes what crashed writers of `final_path` (and, if that is a step folder, of its sibling steps) left, then makes
  // the aside folder. Errors: Error with the path and the system's reason.
  explicit PartialFolder(const std::filesystem::path& final_path);
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;
  ~PartialFolder();  // removes the aside folder unless committed

  const std::filesystem::path& path() const { return path_; }
  // Brings the folder to the disk and moves it to its final place. What stood there before is replaced in the same
  // instant and then removed. The files in it must have been brought to the disk already. Errors: Error.
  void commit();

 private:
  std::filesystem::path final_;
  std::filesystem::path path_;
  bool committed_ = false;
};

// "step-00000020", and back; none for any other name.
std::string step_folder_name(std::int64_t step);
std::optional<std::int64_t> step_of_folder(std::string_view name);

struct StepFolder {
  std::int64_t step = 0;
  std::filesystem::path path;
};

// Complete checkpoints below `folder`, by step. A folder that is not there holds none.
std::vector<StepFolder> list_checkpoints(const std::filesystem::path& folder);
// The one with the highest step. Errors: InputError if two have it.
std::optional<StepFolder> latest_checkpoint(const std::filesystem::path& folder);

// The checkpoint that a user means by `path`: itself if it holds a manifest, else the latest one below it or below its
// folder checkpoints/. Errors: InputError if there is none, or if both have some.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& path);

// Removes all but the `keep` (at least 1) latest. Each disappears in one rename before its files are removed. One
// caller at a time. Returns the removed steps.
std::vector<std::int64_t> prune_checkpoints(const std::filesystem::path& folder, int keep);

// A run that is resumed from an earlier step sets the checkpoints behind that step aside until its first new one is
// complete: a rename to step-00000030.aside-TOKEN. They stay whole and may be read by their path, but the functions
// above do not see them. One caller at a time.

// Sets aside the checkpoints after `step`, the latest first. Returns their steps.
std::vector<std::int64_t> set_aside_after(const std::filesystem::path& folder, std::int64_t step);
// By step.
std::vector<StepFolder> list_set_aside(const std::filesystem::path& folder);
// Gives `path` its name back if it is set aside. A checkpoint that has this name is set aside first.
void restore_set_aside(const std::filesystem::path& path);
// Removes all of them. Returns their steps.
std::vector<std::int64_t> remove_set_aside(const std::filesystem::path& folder);

}  // namespace tessera::checkpoint
