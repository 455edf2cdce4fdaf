// The speed of a machine, read from its file (configs/machines/NAME.json). Predicted times are based on this speed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/quant/dtype.h"

namespace tessera::predict {

struct MachineLink {
  double bytes_per_second = 0;  // received by a rank
  double latency_s = 0;         // latency of a transfer, including its signals
};

struct Machine {
  std::string name, description;
  int ranks_per_node = 1;
  int processors = 1;                    // per node; if a node has more ranks, ranks share processors
  std::int64_t memory_bytes = 0;         // per processor; 0: unknown
  std::map<quant::DType, double> flops;  // peak per second of one processor
  double fp8_flops = 0;  // peak of fp8 products per second of one processor; 0: the flops of the model's type
  double gemm_efficiency = 1, attention_forward_efficiency = 1, attention_backward_efficiency = 1;  // share of flops
  double memory_bytes_per_second = 0;                                                               // of one processor
  MachineLink within_node, between_nodes;
  // True: a rank has one transfer at a time; false: gathers and reductions each have the full rate.
  bool shared_link = false;

  // Returns the link for a group whose ranks are within `extent` consecutive ranks.
  const MachineLink& link(std::int64_t extent) const { return extent <= ranks_per_node ? within_node : between_nodes; }
};

// Throws InputError for an unknown or missing key, a value that is not a positive number, or an efficiency above 1. The
// message contains `where`, the key, the value found and the expected value.
Machine parse_machine(const nlohmann::json& json, const std::string& name, const std::string& where);
// `name` is a path to a JSON file, or NAME for MACHINES/NAME.json. Throws InputError if the file does not exist; the
// message lists the available names.
Machine find_machine(const std::string& name, const std::filesystem::path& machines);

}  // namespace tessera::predict
