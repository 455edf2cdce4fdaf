// The folder of a run, `--out`: config.json, metrics.jsonl, events.out.tfevents.*, summary.json, checkpoints/,
// trace-step-N.json.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::run {

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path root) : root_(std::move(root)) {}
  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path config() const { return root_ / "config.json"; }
  std::filesystem::path metrics() const { return root_ / "metrics.jsonl"; }
  std::filesystem::path summary() const { return root_ / "summary.json"; }
  std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }
  std::filesystem::path step_trace(std::int64_t step) const;
  bool holds_run() const;  // any of the above is there, but for traces and an empty folder of checkpoints

 private:
  std::filesystem::path root_;
};

// Whether a run with this --resume goes on in `out`: "latest", or a checkpoint that lies in `out`.
bool continues_in(const std::filesystem::path& out, const std::string& resume);

// Looks only. InputError when `out` is no folder, holds another run than the resumed one, or holds files of a run
// that cannot be read and replaced.
void check_run_directory(const std::filesystem::path& out, const std::string& resume);

// The same check, then makes the folder and checkpoints/ in it. InputError when it cannot be made or written to; then
// nothing is left behind. By one rank, after everything else of the user's input was checked.
RunDirectory create_run_directory(const std::filesystem::path& out, const std::string& resume);

// Whole or not at all: written aside, synced, renamed over `path`, the folder synced. Error names the file and the
// cause.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);
// Indented; numbers as finite_json.
void write_json_atomically(const std::filesystem::path& path, const nlohmann::ordered_json& value);

// JSON has no infinities: numbers that are not finite become the texts "NaN", "Infinity" and "-Infinity", as in
// metrics.jsonl.
nlohmann::ordered_json finite_json(nlohmann::ordered_json value);

}  // namespace tessera::run
