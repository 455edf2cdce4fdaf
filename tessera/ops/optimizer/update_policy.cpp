#include "tessera/ops/optimizer/update_policy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::ops {

ParameterUpdate UpdatePolicy::update_of(const std::string& name, bool decays) const {
  const auto found = parameters.find(name);
  ParameterUpdate update = found == parameters.end() ? ParameterUpdate{} : found->second;
  if (!decays && !update.group.decay) update.group.decay = 0;
  return update;
}

const UpdateRule& UpdatePolicy::rule_of(const std::string& name) const {
  return *rules.at(update_of(name, /*decays=*/true).rule);
}

std::shared_ptr<const UpdatePolicy> one_rule(std::shared_ptr<const UpdateRule> rule) {
  UpdatePolicy policy;
  policy.rules.push_back(std::move(rule));
  return std::make_shared<const UpdatePolicy>(std::move(policy));
}

UpdateScalars::UpdateScalars(std::shared_ptr<const UpdatePolicy> policy)
    : policy_(std::move(policy)), groups_(policy_->rules.size()) {
  TESSERA_CHECK(!groups_.empty(), "update: the policy has no rule, expected one or more");
}

int UpdateScalars::add(const ParameterUpdate& update) {
  std::vector<UpdateGroup>& groups = groups_.at(update.rule);
  const auto found = std::ranges::find(groups, update.group);
  const auto index = static_cast<int>(found - groups.begin());
  if (found == groups.end()) groups.push_back(update.group);
  return index;
}

std::size_t UpdateScalars::bytes() const {
  return offset_of(groups_.size());
}

std::size_t UpdateScalars::offset_of(std::size_t rule) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < rule; ++i) bytes += groups_[i].size() * policy_->rules[i]->scalar_bytes();
  return bytes;
}

void UpdateScalars::write(double lr, std::int64_t number, std::byte* to) const {
  for (std::size_t i = 0; i < groups_.size(); ++i)
    for (const UpdateGroup& group : groups_[i]) {
      policy_->rules[i]->scalars({.lr = lr * group.lr_factor, .decay = group.decay}, number, to);
      to += policy_->rules[i]->scalar_bytes();
    }
}

void UpdateScalars::write_choices(double lr, std::int64_t lowest, std::byte* to) const {
  std::memcpy(to, &lowest, sizeof lowest);
  to += sizeof lowest;
  for (int i = 0; i < kScalarChoices; ++i, to += bytes()) write(lr, lowest + i, to);
}

}  // namespace tessera::ops
