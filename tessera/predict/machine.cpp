#include "tessera/predict/machine.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/text/printable.h"

namespace tessera::predict {
namespace {

using nlohmann::json;

// A JSON object with a fixed set of keys.
class Object {
 public:
  Object(const json& value, std::string where, std::initializer_list<const char*> keys)
      : value_(value), where_(std::move(where)) {
    if (!value.is_object()) throw InputError("{}: got {}, expected an object", where_, base::shown(value));
    for (const auto& [key, ignored] : value.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        throw InputError("{}: unknown key '{}', expected {}", where_, base::excerpt(key), fmt::join(keys, ", "));
  }

  const json& at(const char* key) const {
    if (!value_.contains(key)) throw InputError("{}: key '{}' is missing", where_, key);
    return value_[key];
  }
  std::string place(const char* key) const { return fmt::format("{}: {}", where_, key); }

  double number(const char* key, double most = 1e30) const {
    const json& value = at(key);
    const double got = value.is_number() ? value.get<double>() : 0;
    if (!(got > 0 && got <= most))
      throw InputError("{}: got {}, expected a number above 0 and at most {:g}", place(key), base::shown(value), most);
    return got;
  }
  // Returns the number of a key, or `absent` if the key is missing.
  double number_or(const char* key, double absent, double most = 1e30) const {
    return value_.contains(key) ? number(key, most) : absent;
  }
  std::int64_t count(const char* key, double most) const {
    const double got = number(key, most);
    if (got != std::floor(got)) throw InputError("{}: got {}, expected an integer", place(key), base::shown(at(key)));
    return static_cast<std::int64_t>(got);
  }
  // Returns the value of a key, or false if the key is missing.
  bool flag(const char* key) const {
    if (!value_.contains(key)) return false;
    if (!value_[key].is_boolean())
      throw InputError("{}: got {}, expected true or false", place(key), base::shown(at(key)));
    return value_[key].get<bool>();
  }

 private:
  const json& value_;
  std::string where_;
};

MachineLink parse_link(const Object& links, const char* key) {
  const Object link(links.at(key), links.place(key), {"bytes_per_second", "latency_s"});
  return {.bytes_per_second = link.number("bytes_per_second"), .latency_s = link.number("latency_s")};
}

MemoryOverhead parse_overhead(const Object& machine) {
  const Object overhead(machine.at("overhead"), machine.place("overhead"),
                        {"context_bytes", "communicator_bytes", "peer_bytes"});
  return {.context_bytes = overhead.count("context_bytes", 1e18),
          .communicator_bytes = overhead.count("communicator_bytes", 1e18),
          .peer_bytes = overhead.count("peer_bytes", 1e18)};
}

// Returns whether the file has a key such as "flops" or "links.between_nodes".
bool has_key(const json& file, const std::string& key) {
  const auto dot = key.find('.');
  const std::string first = key.substr(0, dot);
  if (!file.contains(first)) return false;
  return dot == std::string::npos || (file[first].is_object() && file[first].contains(key.substr(dot + 1)));
}

std::vector<std::string> parse_unmeasured(const json& file, const std::string& where) {
  if (!file.contains("unmeasured")) return {};
  const json& keys = file["unmeasured"];
  const auto is_known = [&](const json& key) { return key.is_string() && has_key(file, key.get<std::string>()); };
  if (!keys.is_array() || !std::ranges::all_of(keys, is_known))
    throw InputError("{}: got {}, expected a list of keys of this file, such as links.between_nodes", where,
                     base::shown(keys));
  return keys.get<std::vector<std::string>>();
}

std::vector<std::string> names_in(const std::filesystem::path& machines) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator it(machines, error), end; !error && it != end; it.increment(error))
    if (it->path().extension() == ".json") names.push_back(it->path().stem().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace

Machine parse_machine(const json& value, const std::string& name, const std::string& where) {
  const Object object(
      value, where,
      {"description", "ranks_per_node", "processors", "memory_bytes", "flops", "efficiency", "memory_bytes_per_second",
       "links", "operator_s", "handover_s", "rank_spread", "overhead", "unmeasured"});
  Machine machine{.name = name};
  if (!object.at("description").is_string())
    throw InputError("{}: got {}, expected a text", object.place("description"), base::shown(value["description"]));
  machine.description = value["description"].get<std::string>();
  machine.ranks_per_node = static_cast<int>(object.count("ranks_per_node", 1e6));
  machine.processors = static_cast<int>(object.count("processors", 1e6));
  if (value.contains("memory_bytes")) machine.memory_bytes = object.count("memory_bytes", 1e18);
  machine.memory_bytes_per_second = object.number("memory_bytes_per_second");

  const Object flops(object.at("flops"), object.place("flops"), {"bf16", "fp32", "fp64", "fp8"});
  for (const auto& [type, ignored] : value["flops"].items())
    (type == "fp8" ? machine.fp8_flops : machine.flops[quant::parse_dtype(type)]) = flops.number(type.c_str());
  const Object efficiency(object.at("efficiency"), object.place("efficiency"),
                          {"gemm", "attention_forward", "attention_backward", "memory"});
  machine.gemm_efficiency = efficiency.number("gemm", 1);
  machine.attention_forward_efficiency = efficiency.number("attention_forward", 1);
  machine.attention_backward_efficiency = efficiency.number("attention_backward", 1);
  machine.memory_efficiency = efficiency.number_or("memory", 1, 1);
  machine.operator_s = object.number_or("operator_s", 0);
  machine.handover_s = object.number_or("handover_s", 0);
  machine.rank_spread = object.number_or("rank_spread", 0, 1);
  const Object links(object.at("links"), object.place("links"),
                     {"within_node", "between_nodes", "collectives", "shared"});
  machine.within_node = parse_link(links, "within_node");
  machine.between_nodes = parse_link(links, "between_nodes");
  if (value["links"].contains("collectives")) machine.collectives = parse_link(links, "collectives");
  machine.shared_link = links.flag("shared");
  if (value.contains("overhead")) machine.overhead = parse_overhead(object);
  machine.unmeasured = parse_unmeasured(value, object.place("unmeasured"));
  return machine;
}

std::int64_t Machine::overhead_bytes(std::int64_t ranks) const {
  if (ranks == 1) return overhead.context_bytes;
  const std::int64_t peers = std::min<std::int64_t>(ranks, ranks_per_node) - 1;
  return overhead.context_bytes + overhead.communicator_bytes + peers * overhead.peer_bytes;
}

Machine find_machine(const std::string& name, const std::filesystem::path& machines) {
  std::filesystem::path file = machines / (name + ".json");
  std::error_code ignored;
  if (name.empty() || name.find('/') != std::string::npos || !std::filesystem::exists(file, ignored)) file = name;
  if (name.empty() || !std::filesystem::exists(file, ignored))
    throw InputError("--machine: '{}' not found, expected a JSON file or a name under {} (there: {})", name,
                     machines.string(), fmt::join(names_in(machines), ", "));
  return parse_machine(base::read_json_file(file), file.stem().string(), file.string());
}

}  // namespace tessera::predict
