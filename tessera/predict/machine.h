// The speed of a machine, read from its file (configs/machines/NAME.json). Predicted times are based on this speed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tessera/quant/dtype.h"

namespace tessera::predict {

struct MachineLink {
  double bytes_per_second = 0;  // received by a rank
  double latency_s = 0;         // latency of a transfer, including its signals
};

// Memory of a processor that no plan allocates. All zero if the file does not state it.
struct MemoryOverhead {
  std::int64_t context_bytes = 0;       // context of the device, code of the libraries, their workspaces
  std::int64_t communicator_bytes = 0;  // with several ranks
  std::int64_t peer_bytes = 0;          // for each other rank of the node
};

struct Machine {
  std::string name, description;
  int ranks_per_node = 1;
  int processors = 1;                    // per node; if a node has more ranks, ranks share processors
  std::int64_t memory_bytes = 0;         // per processor; 0: unknown
  std::map<quant::DType, double> flops;  // peak per second of one processor
  double fp8_flops = 0;  // peak of fp8 products per second of one processor; 0: the flops of the model's type
  double gemm_efficiency = 1, attention_forward_efficiency = 1, attention_backward_efficiency = 1;  // share of flops
  double memory_efficiency = 1;        // share of memory_bytes_per_second that operators reach; 1 if absent
  double memory_bytes_per_second = 0;  // of one processor
  double operator_s = 0;               // of each operator beyond its work: launch, and the wait for the last block
  // Beyond waits: at each point where compute waits for a gathered weight, frees one, or hands over a gradient.
  double handover_s = 0;
  MachineLink within_node, between_nodes;
  // Within a node, collectives of the program, which carry activations. Absent: within_node.
  std::optional<MachineLink> collectives;
  // Ranks differ in speed. Compute of the slowest rank, divided by the mean, minus 1: the mean rank waits for as long.
  double rank_spread = 0;
  MemoryOverhead overhead;
  bool shared_link =
      false;  // true: one gather or reduction of a rank runs at a time; false: each runs at the full rate

  // Returns the link of the program's collectives over `extent` consecutive ranks.
  const MachineLink& collective_link(std::int64_t extent) const {
    return collectives && extent <= ranks_per_node ? *collectives : link(extent);
  }
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
