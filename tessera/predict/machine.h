// The speed of a machine, read from a machine file (configs/machines/NAME.json). Predicted times are based on this
// speed.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/quant/dtype.h"

namespace tessera::predict {

struct MachineLink {
  double bytes_per_second = 0;  // rate at which a rank receives
  double latency_s = 0;         // latency of a transfer, including the signals before and after the data
};

// Memory of a processor that is used but not planned. All members are 0 if the machine file does not state them.
struct MemoryOverhead {
  std::int64_t context_bytes = 0;       // device context, and the code and workspaces of libraries
  std::int64_t communicator_bytes = 0;  // communicators; 0 in a run with one rank
  std::int64_t peer_bytes = 0;          // memory for each other rank of the node
};

struct Machine {
  std::string name, description;
  int ranks_per_node = 1;
  int processors = 1;                    // per node; if a node has more ranks than processors, ranks share processors
  std::int64_t memory_bytes = 0;         // per processor; 0: unknown
  std::map<quant::DType, double> flops;  // peak flops per second of one processor
  double fp8_flops = 0;                  // peak flops per second of fp8 products; 0: as in the model's type
  // Share of the peak flops that each kind of operator reaches.
  double gemm_efficiency = 1, attention_forward_efficiency = 1, attention_backward_efficiency = 1;
  double memory_efficiency = 1;        // share of memory_bytes_per_second that operators reach; 1 if absent
  double memory_bytes_per_second = 0;  // bandwidth of one processor's memory
  double operator_s = 0;               // seconds added to each operator: its launch, and the wait for its last block
  // Seconds added at each event where compute waits for a gathered weight, releases a weight or produces a gradient.
  // Waits are counted separately.
  double handover_s = 0;
  MachineLink within_node, between_nodes;
  // Link within a node for the program's collectives, which transfer activations. Absent: within_node applies.
  std::optional<MachineLink> collectives;
  // The compute time of the slowest rank, divided by the mean compute time, minus 1. In each step, ranks wait for the
  // slowest rank; the average wait is this share of the mean compute time.
  double rank_spread = 0;
  MemoryOverhead overhead;
  // true: a rank's gathers and reductions run one at a time; false: they overlap, each at the full rate.
  bool shared_link = false;
  // Keys of the machine file whose values nobody measured, such as "links.between_nodes". They may be nominal values.
  std::vector<std::string> unmeasured = {};

  // Returns the bytes of `overhead` on a processor of a run with this number of ranks.
  std::int64_t overhead_bytes(std::int64_t ranks) const;
  // Returns whether the processors are GPUs, which have a device context.
  bool has_gpus() const { return overhead.context_bytes > 0; }
  // Returns the link for the program's collectives whose ranks are within `extent` consecutive ranks.
  const MachineLink& collective_link(std::int64_t extent) const {
    return collectives && extent <= ranks_per_node ? *collectives : link(extent);
  }
  // Returns the link for a group whose ranks are within `extent` consecutive ranks.
  const MachineLink& link(std::int64_t extent) const { return extent <= ranks_per_node ? within_node : between_nodes; }
};

// Throws InputError for an unknown or missing key, a key in `unmeasured` that the file does not have, a value that is
// not a positive number, or an efficiency above 1. The message contains `where`, the key, the value and the expected
// value.
Machine parse_machine(const nlohmann::json& json, const std::string& name, const std::string& where);
// Reads the machine file `name`: a path to a JSON file, or NAME for the file NAME.json in `machines`. Throws InputError
// if the file does not exist; the message lists the available names.
Machine find_machine(const std::string& name, const std::filesystem::path& machines);

}  // namespace tessera::predict
