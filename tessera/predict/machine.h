// What a machine can do, as its file says it (configs/machines/NAME.json): the base of predicted times.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tessera/quant/dtype.h"

namespace tessera::predict {

struct MachineLink {
  double bytes_per_second = 0;  // that a rank receives
  double latency_s = 0;         // of a transfer, signals included
};

struct Machine {
  std::string name, description;
  int ranks_per_node = 1;
  int processors = 1;                    // of a node; more ranks than these share them
  std::int64_t memory_bytes = 0;         // of a processor; 0: not known
  std::map<quant::DType, double> flops;  // a second of one processor, at best
  double fp8_flops = 0;                  // the same of fp8 products; 0: not said, as those of bf16
  double gemm_efficiency = 1, attention_forward_efficiency = 1, attention_backward_efficiency = 1;  // of flops
  double memory_bytes_per_second = 0;                                                               // of one processor
  MachineLink within_node, between_nodes;
  bool shared_link = false;  // what a rank gathers and reduces takes turns; else each goes at the full rate

  // Ranks of one group that lie within `extent` neighbouring ranks talk over this link.
  const MachineLink& link(std::int64_t extent) const { return extent <= ranks_per_node ? within_node : between_nodes; }
};

// InputError naming `where`, the key, what it holds and what was expected: an unknown or missing key, a value that is
// no positive number, an efficiency above 1.
Machine parse_machine(const nlohmann::json& json, const std::string& name, const std::string& where);
// A path to a JSON file, or NAME for MACHINES/NAME.json. InputError lists the names there are.
Machine find_machine(const std::string& name, const std::filesystem::path& machines);

}  // namespace tessera::predict
