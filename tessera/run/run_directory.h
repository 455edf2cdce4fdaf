// The folder of a run, `--out`: config.json, metrics.jsonl, events.out.tfevents.*, summary.json, checkpoints/,
// tokenizer/, trace-step-N.json, resume-without.json.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tessera::run {

inline constexpr std::string_view kTokenizerFolder = "tokenizer";

class RunDirectory {
 public:
  explicit RunDirectory(std::filesystem::path root) : root_(std::move(root)) {}
  const std::filesystem::path& root() const { return root_; }
  std::filesystem::path config() const { return root_ / "config.json"; }
  std::filesystem::path metrics() const { return root_ / "metrics.jsonl"; }
  std::filesystem::path summary() const { return root_ / "summary.json"; }
  std::filesystem::path checkpoints() const { return root_ / "checkpoints"; }
  std::filesystem::path tokenizer() const { return root_ / kTokenizerFolder; }
  std::filesystem::path resume_without() const { return root_ / "resume-without.json"; }
  std::filesystem::path step_trace(std::int64_t step) const;
  bool holds_run() const;  // whether any of these files exists, except traces and an empty folder of checkpoints

 private:
  std::filesystem::path root_;
};

// Returns whether a run with this --resume continues in `out`: `resume` is "latest" or a checkpoint inside `out`.
bool continues_in(const std::filesystem::path& out, const std::string& resume);

// Checks without writing. Throws InputError if `out` is not a folder, holds a run other than the resumed one, or holds
// files of a run that cannot be read and replaced.
void check_run_directory(const std::filesystem::path& out, const std::string& resume);

// Makes the same check, then creates the folder with checkpoints/ in it. Throws InputError if the folder cannot be
// created or written; then nothing is left behind. Called on one rank, after all other user input was checked.
RunDirectory create_run_directory(const std::filesystem::path& out, const std::string& resume);

// Writes the whole file or nothing: writes a temporary file, syncs it, renames it to `path`, and syncs the folder.
// Throws Error, which names the file and the cause.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);
// Writes indented JSON. Numbers that are not finite are written as in finite_json.
void write_json_atomically(const std::filesystem::path& path, const nlohmann::ordered_json& value);

// Replaces numbers that are not finite by the texts "NaN", "Infinity" and "-Infinity", as in metrics.jsonl, because
// JSON cannot represent them.
nlohmann::ordered_json finite_json(nlohmann::ordered_json value);

}  // namespace tessera::run
