#include "tessera/checkpoint/folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <set>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/checkpoint/io.h"
#include "tessera/checkpoint/manifest.h"

namespace tessera::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPartial = ".partial-", kAside = ".aside-";
constexpr std::size_t kTokenDigits = 16;

// Returns a name that no other writer uses, so that a slow writer of a crashed run cannot write into a new run's
// folder.
fs::path unique_name(const fs::path& final_path, std::string_view kind = kPartial) {
  const auto now = std::chrono::system_clock::now().time_since_epoch().count();
  const auto token = static_cast<std::uint64_t>(now) * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(::getpid());
  return fs::path(final_path).concat(fmt::format("{}{:016x}", kind, token));
}

std::string_view token_of(std::string_view name) {
  return name.substr(name.size() - kTokenDigits);
}

// Returns "step-00000020" for "step-00000020.partial-0123456789abcdef", and an empty name for any other name.
std::string_view final_name_of(std::string_view name, std::string_view kind = kPartial) {
  if (name.size() <= kind.size() + kTokenDigits) return {};
  const std::string_view token = token_of(name);
  name.remove_suffix(kTokenDigits);
  if (!name.ends_with(kind) || token.find_first_not_of("0123456789abcdef") != std::string_view::npos) return {};
  name.remove_suffix(kind.size());
  return name;
}

bool holds_manifest(const fs::path& folder) {
  std::error_code code;
  return fs::is_regular_file(folder / kManifestFile, code);
}

[[noreturn]] void fail_rename(const fs::path& from, const fs::path& to, int code) {
  throw Error("cannot rename {} to {}: {}", from.string(), to.string(), std::generic_category().message(code));
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) fail_rename(from, to, errno);
}

// The name of the folder that `fresh` replaces, between the two renames of put_in_place. Both names have one token.
fs::path replaced_by(const fs::path& fresh, const fs::path& final_path) {
  return fs::path(final_path).concat(fmt::format("{}{}", kAside, token_of(fresh.native())));
}

// Moves the folder `fresh` to `final_path`. If `final_path` exists, its old content is at `fresh` afterwards.
void put_in_place(const fs::path& fresh, const fs::path& final_path) {
  if (!fs::exists(fs::symlink_status(final_path))) return rename_or_fail(fresh, final_path);
  if (::renameat2(AT_FDCWD, fresh.c_str(), AT_FDCWD, final_path.c_str(), RENAME_EXCHANGE) == 0) return;
  if (errno != EINVAL && errno != ENOSYS) fail_rename(fresh, final_path, errno);
  // This file system cannot exchange two names. Between the next two renames, `final_path` does not exist. After a
  // crash at this point, the old folder still counts (interrupted_replacements).
  const fs::path old = replaced_by(fresh, final_path);
  rename_or_fail(final_path, old);
  if (::rename(fresh.c_str(), final_path.c_str()) != 0) {
    const int code = errno;
    rename_or_fail(old, final_path);
    fail_rename(fresh, final_path, code);
  }
  rename_or_fail(old, fresh);
}

// A crash between the first two renames of put_in_place leaves `old` and the new folder, but no folder with the final
// name.
struct Replacement {
  fs::path old, final_path;
};

// Returns the interrupted replacements in `folder`. Returns an empty list if `folder` cannot be read.
std::vector<Replacement> interrupted_replacements(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
    names.insert(entry->path().filename().string());
  std::vector<Replacement> found;
  for (const std::string& name : names) {
    const std::string final_name(final_name_of(name, kAside));
    if (!final_name.empty() && !names.contains(final_name) &&
        names.contains(fmt::format("{}{}{}", final_name, kPartial, token_of(name))))
      found.push_back({.old = folder / name, .final_path = folder / final_name});
  }
  return found;
}

// Gives replaced folders their names back and removes the partial folders, for the folders that crashed writers left.
void remove_stale(const fs::path& final_path) {
  const fs::path folder = final_path.parent_path();
  const std::string wanted = final_path.filename().string();
  const auto is_meant = [&](std::string_view name) {
    return name == wanted || (step_of_folder(wanted) && step_of_folder(name));
  };
  for (const auto& [old, replaced] : interrupted_replacements(folder)) {
    if (!is_meant(replaced.filename().string())) continue;
    rename_or_fail(old, replaced);
    sync_folder(folder);
  }
  std::vector<fs::path> stale;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (is_meant(final_name_of(name))) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove_all(path);
}

std::vector<std::int64_t> remove_all_of(const std::vector<StepFolder>& folders) {
  std::vector<std::int64_t> removed;
  for (const StepFolder& folder : folders) {
    const fs::path aside = unique_name(folder.path.parent_path() / step_folder_name(folder.step));
    rename_or_fail(folder.path, aside);
    sync_folder(folder.path.parent_path());
    std::error_code code;
    fs::remove_all(aside, code);
    if (code) throw Error("cannot remove {}: {}", aside.string(), code.message());
    removed.push_back(folder.step);
  }
  return removed;
}

// Returns the complete checkpoints in `folder`, by step. step_of returns the step of a folder, or nullopt to ignore the
// folder.
template <typename StepOf>
std::vector<StepFolder> list_folders(const fs::path& folder, StepOf step_of) {
  std::vector<StepFolder> found;
  std::error_code code;
  if (!fs::exists(folder, code)) return found;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code)) {
    const std::optional<std::int64_t> step = step_of(entry->path());
    if (step && holds_manifest(entry->path())) found.push_back({*step, entry->path()});
  }
  if (code) throw InputError("cannot read the folder {}: {}", folder.string(), code.message());
  std::sort(found.begin(), found.end(), [](const StepFolder& a, const StepFolder& b) { return a.step < b.step; });
  return found;
}

}  // namespace

PartialFolder::PartialFolder(const fs::path& final_path) {
  try {
    final_ = fs::absolute(final_path).lexically_normal();
    if (!final_.has_filename()) final_ = final_.parent_path();
    fs::create_directories(final_.parent_path());
    remove_stale(final_);
    const fs::path aside = unique_name(final_);
    if (!fs::create_directory(aside)) throw Error("cannot create {}: it exists", aside.string());
    path_ = aside;
  } catch (const fs::filesystem_error& error) {
    throw Error("cannot create a folder for {}: {}", final_.string(), error.code().message());
  }
}

PartialFolder::~PartialFolder() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(path_, ignored);
}

void PartialFolder::commit() {
  sync_folder(path_);
  put_in_place(path_, final_);
  committed_ = true;
  sync_folder(final_.parent_path());
  std::error_code ignored;
  fs::remove_all(path_, ignored);  // removes the replaced folder, if there was one
}

std::string step_folder_name(std::int64_t step) {
  return fmt::format("step-{:08}", step);
}

std::optional<std::int64_t> step_of_folder(std::string_view name) {
  constexpr std::string_view prefix = "step-";
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

std::vector<StepFolder> list_checkpoints(const fs::path& folder) {
  const std::vector<Replacement> interrupted = interrupted_replacements(folder);
  return list_folders(folder, [&](const fs::path& path) {
    const auto replacement = std::ranges::find(interrupted, path, &Replacement::old);
    return step_of_folder((replacement != interrupted.end() ? replacement->final_path : path).filename().string());
  });
}

std::optional<StepFolder> latest_checkpoint(const fs::path& folder) {
  const std::vector<StepFolder> all = list_checkpoints(folder);
  if (all.size() > 1 && all[all.size() - 2].step == all.back().step)
    throw InputError("{}: {} and {} are both of step {}: expected one of them", folder.string(),
                     all[all.size() - 2].path.filename().string(), all.back().path.filename().string(),
                     all.back().step);
  return all.empty() ? std::nullopt : std::optional(all.back());
}

fs::path resolve_checkpoint(const fs::path& path) {
  if (holds_manifest(path)) return path;
  const auto above = latest_checkpoint(path), below = latest_checkpoint(path / "checkpoints");
  if (above && below)
    throw InputError("{}: holds {} and checkpoints/{}: expected checkpoints in one of the two", path.string(),
                     above->path.filename().string(), below->path.filename().string());
  if (above || below) return above ? above->path : below->path;
  std::vector<StepFolder> aside = list_set_aside(path);
  if (aside.empty()) aside = list_set_aside(path / "checkpoints");
  throw InputError("{}: no checkpoint: expected a folder with {}, or with folders step-N that hold one{}",
                   path.string(), kManifestFile,
                   aside.empty() ? "" : fmt::format(" (a resumed run set {} aside)", aside.back().path.string()));
}

std::vector<std::int64_t> prune_checkpoints(const fs::path& folder, int keep, std::int64_t keep_every) {
  TESSERA_CHECK(keep >= 1, "keep: expected at least 1, got {}", keep);
  std::vector<StepFolder> all = list_checkpoints(folder);
  all.resize(all.size() - std::min(all.size(), static_cast<std::size_t>(keep)));
  if (keep_every > 0)
    std::erase_if(all, [&](const StepFolder& checkpoint) { return checkpoint.step % keep_every == 0; });
  return remove_all_of(all);
}

std::vector<std::int64_t> set_aside_after(const fs::path& folder, std::int64_t step) {
  std::vector<StepFolder> all = list_checkpoints(folder);
  std::reverse(all.begin(), all.end());
  std::vector<std::int64_t> steps;
  for (const StepFolder& checkpoint : all) {
    if (checkpoint.step <= step) break;
    rename_or_fail(checkpoint.path, unique_name(folder / step_folder_name(checkpoint.step), kAside));
    steps.push_back(checkpoint.step);
  }
  if (!steps.empty()) sync_folder(folder);
  return steps;
}

std::vector<StepFolder> list_set_aside(const fs::path& folder) {
  const std::vector<Replacement> interrupted = interrupted_replacements(folder);
  return list_folders(folder, [&](const fs::path& path) -> std::optional<std::int64_t> {
    if (std::ranges::find(interrupted, path, &Replacement::old) != interrupted.end()) return std::nullopt;
    const std::string name = path.filename().string();
    return step_of_folder(final_name_of(name, kAside));
  });
}

void restore_set_aside(const fs::path& path) {
  const fs::path aside = fs::weakly_canonical(path);
  const std::string name = aside.filename().string();
  const auto step = step_of_folder(final_name_of(name, kAside));
  if (!step) return;
  const fs::path final_path = aside.parent_path() / step_folder_name(*step);
  if (fs::exists(fs::symlink_status(final_path))) rename_or_fail(final_path, unique_name(final_path, kAside));
  rename_or_fail(aside, final_path);
  sync_folder(aside.parent_path());
}

std::vector<std::int64_t> remove_set_aside(const fs::path& folder) {
  return remove_all_of(list_set_aside(folder));
}

}  // namespace tessera::checkpoint
