// The folder of a run, `--out`: config.json, metrics.jsonl, events.out.tfevents.*, summary.json, checkpoints/,
// tokenizer/, trace-step-N.json, resume-without.json.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "tessera/telemetry/metrics.h"

namespace tessera::hub {

inline constexpr std::string_view kTokenizerFolder = "tokenizer";

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path root) : root_(std::move(root)) {}
  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path config() const { return root_ / "config.json"; }
  std::filesystem::path metrics() const { return root_ / telemetry::kMetricsFile; }
  std::filesystem::path summary() const { return root_ / "summary.json"; }
  std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }
  std::filesystem::path tokenizer() const { return root_ / kTokenizerFolder; }
  std::filesystem::path resume_without() const { return root_ / "resume-without.json"; }
  std::filesystem::path step_trace(std::int64_t step) const;
  // Whether a file of a run exists here; traces and an empty folder of checkpoints do not count.
  bool holds_run() const;

 private:
  std::filesystem::path root_;
};

// Returns whether a run with this value of --resume continues the run in `out`. This is the case if `resume` is
// "latest" or a checkpoint inside `out`.
bool continues_in(const std::filesystem::path& out, const std::string& resume);

// Checks the folder of a run without writing to it. Throws InputError if `out` is not a folder, contains a run other
// than the resumed one, or contains files of a run that cannot be read and replaced.
void check_run_directory(const std::filesystem::path& out, const std::string& resume);

// Calls check_run_directory, then creates the folder and its subfolder checkpoints/. Throws InputError if the folder
// cannot be created or written, and then leaves no new folder behind. Called on one rank, after all other user input
// was checked.
RunDirectory create_run_directory(const std::filesystem::path& out, const std::string& resume);

}  // namespace tessera::hub
