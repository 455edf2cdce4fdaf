#include "tessera/hub/run_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::hub {
namespace fs = std::filesystem;
namespace {

// Creates `folder` and its missing parents. Appends each created folder to `made`, outermost first.
void make_folders(const fs::path& folder, std::vector<fs::path>& made) {
  std::vector<fs::path> missing;
  std::error_code error;
  for (fs::path at = folder; !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    if (error) throw fs::filesystem_error("", at, error);
    missing.push_back(at);
  }
  for (auto at = missing.rbegin(); at != missing.rend(); ++at)
    if (fs::create_directory(*at)) made.push_back(*at);
}

// Throws InputError if `folder` or a folder above it is a link to a path that does not exist.
void refuse_broken_links(const fs::path& folder) {
  std::error_code ignored;
  fs::path at = fs::absolute(folder).lexically_normal();
  for (; !at.empty() && !fs::exists(at, ignored); at = at.parent_path())
    if (fs::is_symlink(at, ignored))
      throw InputError("--out: '{}' is a link to '{}', which does not exist, expected a folder or a new path",
                       at.string(), fs::read_symlink(at, ignored).string());
}

// Checks the files that a resumed run reads and replaces.
void check_files(const RunDirectory& run) {
  std::error_code error;
  for (const fs::path& path : {run.config(), run.metrics(), run.summary()}) {
    if (!fs::exists(path, error) && !error) continue;
    if (!error && !fs::is_regular_file(path, error))
      throw InputError("--out: '{}' is {}, expected a file", path.string(),
                       fs::is_directory(path, error) ? "a folder" : "a pipe or device");
    if (error || ::access(path.c_str(), R_OK | W_OK) != 0)
      throw InputError("--out: '{}' cannot be read and written: {}", path.string(),
                       error ? error.message() : std::strerror(errno));
  }
  if (fs::exists(run.checkpoints(), error) && !fs::is_directory(run.checkpoints(), error))
    throw InputError("--out: '{}' is a file, expected a folder", run.checkpoints().string());
}

void probe_write(const fs::path& folder) {
  const fs::path probe = folder / fmt::format(".write-test.{}", ::getpid());
  const int file = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) throw fs::filesystem_error("", probe, std::error_code(errno, std::generic_category()));
  ::close(file);
  ::unlink(probe.c_str());
}

}  // namespace

fs::path RunDirectory::step_trace(std::int64_t step) const {
  return root_ / fmt::format("trace-step-{}.json", step);
}

bool RunDirectory::holds_run() const {
  std::error_code ignored;
  for (const fs::path& path : {config(), metrics(), summary()})
    if (fs::exists(fs::symlink_status(path, ignored))) return true;
  // If a run fails at its start, its folder has only an empty folder of checkpoints.
  return fs::exists(fs::symlink_status(checkpoints(), ignored)) &&
         !(fs::is_directory(checkpoints(), ignored) && fs::is_empty(checkpoints(), ignored));
}

bool continues_in(const fs::path& out, const std::string& resume) {
  if (resume.empty() || resume == "latest") return !resume.empty();
  const fs::path root = fs::weakly_canonical(out), checkpoint = fs::weakly_canonical(resume);
  const fs::path inside = checkpoint.lexically_relative(root);
  return !inside.empty() && *inside.begin() != "..";
}

void check_run_directory(const fs::path& out, const std::string& resume) {
  std::error_code error;
  const fs::file_status status = fs::status(out, error);
  if (error && status.type() != fs::file_type::not_found)
    throw InputError("--out: '{}' cannot be used: {}", out.string(), error.message());
  refuse_broken_links(RunDirectory(out).checkpoints());
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) throw InputError("--out: '{}' is a file, expected a folder", out.string());
  if (RunDirectory(out).holds_run() && !continues_in(out, resume))
    throw InputError("--out: '{}' holds another run, expected a new folder (or --resume latest to continue that run)",
                     out.string());
  check_files(RunDirectory(out));
}

RunDirectory create_run_directory(const fs::path& out, const std::string& resume) {
  check_run_directory(out, resume);
  std::vector<fs::path> made;
  try {
    const fs::path root = fs::absolute(out).lexically_normal();
    make_folders(root / "checkpoints", made);
    probe_write(root);
    probe_write(root / "checkpoints");
  } catch (const fs::filesystem_error& failure) {
    std::error_code ignored;
    for (auto at = made.rbegin(); at != made.rend(); ++at) fs::remove(*at, ignored);
    throw InputError("--out: '{}' cannot be written: {}", out.string(), failure.code().message());
  }
  return RunDirectory(out);
}

}  // namespace tessera::hub
