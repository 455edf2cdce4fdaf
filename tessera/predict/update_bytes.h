// Counts the bytes that sums of gradients and the update read and write. The gradient norm reads each gradient once.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/ops/optimizer/update_rule.h"
#include "tessera/shard/parameter.h"

namespace tessera::predict {

// Returns the bytes of one sum: the owner of a shard adds the gradients of `parts` ranks. The first sum of a step
// (`is_first`) overwrites main_grad. Later sums read main_grad and add to it.
inline std::int64_t ordered_sum_bytes(std::int64_t elements, int parts, const shard::ParameterTypes& types,
                                      bool is_first = false) {
  return parts * types.wire_bytes(elements) + (is_first ? 1 : 2) * types.accumulator_bytes(elements);
}

// The elements of a parameter that an update changes.
struct UpdatedElements {
  std::int64_t count = 0;
  shard::ParameterTypes types;
  quant::DType gradient = quant::DType::fp32;  // type of main_grad
  bool splits_master = false;                  // result of shard::splits_master()
};
// An update reads and writes the master and the rule's state, and reads the gradient. It also writes the weight if the
// weight is separate from the master. A split master and its weight have the bytes of one fp32 master together.
inline std::int64_t update_bytes(const ops::UpdateRule& rule, const UpdatedElements& elements) {
  const shard::ParameterTypes& types = elements.types;
  const bool writes_weight = types.model != types.accumulator && !elements.splits_master;
  return 2 * (types.accumulator_bytes(elements.count) + ops::state_bytes(rule, elements.count, types.accumulator)) +
         shard::bytes_of(elements.count, elements.gradient) +
         (writes_weight ? shard::bytes_of(elements.count, types.model) : 0);
}

// The parameters of an update rule, and the bytes that the rule stores and moves.
struct RuleBytes {
  std::string_view rule;                // UpdateRule::name
  std::vector<ops::StatePlane> planes;  // the state of an element
  std::int64_t parameters = 0;          // number of updated elements
  std::int64_t state = 0;               // bytes of the planes
  std::int64_t update = 0;              // update_bytes; 0: not counted
};
// Adds elements of a parameter to the entry of its rule. Appends an entry for a new rule.
void add_to(std::vector<RuleBytes>& rules, const ops::UpdateRule& rule, const UpdatedElements& elements);
// Returns [{"rule", "planes": {name: type}, "parameters", "state_bytes", "update_bytes"}]. The last key is absent if
// the bytes are not counted.
nlohmann::ordered_json rules_json(const std::vector<RuleBytes>& rules);
// Returns a line for each rule.
std::string rules_text(const std::vector<RuleBytes>& rules);

}  // namespace tessera::predict
