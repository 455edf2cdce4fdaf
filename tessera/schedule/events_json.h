// A trace as a JSON file that people can read: an event a line.
//
//   {"format": "tessera trace", "version": 1, "step": "train",
//    "parameters": ["embedding.weight", ...],
//    "events": [
//     ["consume", microbatch, pass, parameter, ordinal],              release, produce and publish alike
//     ["comm", microbatch, pass, ordinal, group, op, bytes],          and the parameter whose rows it reads
//     ["stash", microbatch, pass, ordinal, way, bytes]]}              fetch alike
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

// Errors (Error): events of different step kinds, a parameter without a name.
std::string trace_to_json(const NamedTrace& named);
// InputError, naming `where` (the file) and the event, with what was expected and got, for anything that
// trace_to_json does not write.
NamedTrace trace_from_json(const nlohmann::json& json, const std::string& where);

// Error when the file cannot be written.
void save_trace(const std::filesystem::path& path, const NamedTrace& named);
// InputError as read_json_file and trace_from_json.
NamedTrace load_trace(const std::filesystem::path& path);

}  // namespace tessera::schedule
