// A trace as a readable JSON file, with one event per line.
//
//   {"format": "tessera trace", "version": 1, "step": "train",
//    "parameters": ["embedding.weight", ...],
//    "events": [
//     ["consume", microbatch, pass, parameter, ordinal],       the same for release, produce and publish
//     ["comm", microbatch, pass, ordinal, group, op, bytes],   the same for need and sum; then the parameter (-1: none)
//                                                              and the offset, if the event has them
//     ["stash", microbatch, pass, ordinal, op, bytes]]}        the same for fetch
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/schedule/events.h"

namespace tessera::schedule {

struct NamedTrace {
  std::vector<std::string> names;  // by parameter id
  Trace trace;
  bool operator==(const NamedTrace&) const = default;
};

// Throws Error if events have different step kinds, or if a parameter has no name.
std::string trace_to_json(const NamedTrace& named);
// Throws InputError if `json` is not in this format. The message contains `where` (the file), the event, the expected
// value and the actual value.
NamedTrace trace_from_json(const nlohmann::json& json, const std::string& where);

// Throws Error if the file cannot be written.
void save_trace(const std::filesystem::path& path, const NamedTrace& named);
// Throws the errors of read_json_file and trace_from_json.
NamedTrace load_trace(const std::filesystem::path& path);

}  // namespace tessera::schedule
