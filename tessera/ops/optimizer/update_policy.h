// The update rule, the learning rate and the weight decay of each parameter of a run, and the scalars of an update.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/ops/optimizer/update_rule.h"

namespace tessera::ops {

// The settings that the parameters of a group share.
struct UpdateGroup {
  double lr_factor = 1;         // multiplies the learning rate of the step
  std::optional<double> decay;  // weight decay; absent: that of the rule

  bool operator==(const UpdateGroup&) const = default;
};

// How a parameter is updated.
struct ParameterUpdate {
  std::size_t rule = 0;  // index in UpdatePolicy::rules
  UpdateGroup group;
};

struct UpdatePolicy {
  std::vector<std::shared_ptr<const UpdateRule>> rules;  // not empty, no null
  // By name of a parameter. Other parameters have ParameterUpdate{}.
  std::map<std::string, ParameterUpdate, std::less<>> parameters = {};

  // Returns how a parameter is updated. Without weight decay of its own, a parameter that does not decay
  // (ParameterSpec::decay) gets a decay of 0.
  ParameterUpdate update_of(const std::string& name, bool decays) const;
  const UpdateRule& rule_of(const std::string& name) const;
};
// Returns the policy that updates all parameters by one rule.
std::shared_ptr<const UpdatePolicy> one_rule(std::shared_ptr<const UpdateRule> rule);

// The scalars of all groups of a run, as one array: the groups of the first rule, then those of the second rule, and so
// on. Parameters with the same rule, factor and decay share a group.
class UpdateScalars {
 public:
  explicit UpdateScalars(std::shared_ptr<const UpdatePolicy> policy);

  // Returns the index of the group among the groups of its rule. Adds the group if it is new. Equal calls in the same
  // order give equal arrays.
  int add(const ParameterUpdate& update);

  std::size_t bytes() const;                      // of the array
  std::size_t offset_of(std::size_t rule) const;  // of the first group of a rule, in bytes
  // Writes the array for the update with this number, from 1. `lr` is the learning rate of the step.
  void write(double lr, std::int64_t number, std::byte* to) const;
  // Writes the choices (update_rule.h) of an update; choices_bytes(bytes()) bytes.
  void write_choices(double lr, std::int64_t lowest, std::byte* to) const;

 private:
  std::shared_ptr<const UpdatePolicy> policy_;
  std::vector<std::vector<UpdateGroup>> groups_;  // by rule
};

}  // namespace tessera::ops
