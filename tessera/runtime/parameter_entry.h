// One parameter of a running rank: its shard, its ways between ranks, and where its gathered weight and its gradient
// are now. Only the functions below change that state.
//
//   gathered weight   set_gathered (Replay) or hold_weight (OnDemand) -> consumed ... released -> not readable
//   gradient          stage -> produced -> take_gradient (its reduction is issued), once a microbatch;
//                     sum_replicas once a step, after the last microbatch's reduction
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/buffer.h"
#include "tessera/quant/formats/format.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/materialize.h"
#include "tessera/shard/reduction.h"
#include "tessera/shard/replicas.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/way_bytes.h"

namespace tessera::runtime {

class ParameterEntry {
 public:
  ParameterEntry(shard::ShardedParameter made, const shard::ParallelGroups& parallel, const shard::Cuts& cuts);

  const std::string& name() const { return parameter.spec.name; }
  int domain() const { return parameter.spec.domain; }

  shard::ShardedParameter parameter;
  // Set once, by the constructor.
  shard::Ways ways;                            // bytes that this rank receives
  quant::Format format = quant::Format::bf16;  // in which the weight travels
  shard::Materializer materializer;
  shard::Reducer reducer;
  shard::Replicas replicas;
  std::optional<shard::RowGather> rows;  // only for a table whose rows travel by index

  void begin_step();

  // The gathered weight. RunningProgram counts its users; Replay or OnDemand sets its address.
  bool is_consumed() const { return users_ > 0; }
  const std::byte* view() const { return view_; }
  void set_gathered(const std::byte* weight) { view_ = weight; }
  void consumed() { ++users_; }
  bool released() {
    return --users_ == 0;
  }  // only while is_consumed; returns whether the last user has released the weight
  // Stores the buffer into which OnDemand gathered the weight. take_weight returns this buffer, or an empty one if
  // OnDemand did not gather the weight.
  void hold_weight(base::Buffer weight);
  base::Buffer take_weight() { return std::exchange(demand_weight_, {}); }

  // The gradient of the current microbatch.
  std::byte* staging() const { return staging_; }       // null: grad_buffer was not called, or its reduction is issued
  bool is_produced() const { return produced_; }        // the gradient is produced, and its reduction is not issued yet
  int last_produced() const { return last_produced_; }  // microbatch of the last produce of this step; -1: none
  void stage(std::byte* staging) { staging_ = staging; }
  void hold_staging(base::Buffer staging);  // stages in a buffer of OnDemand
  void produced(int microbatch) { produced_ = true, last_produced_ = microbatch; }
  // Only while is_produced: returns the staging of the gradient, whose reduction the caller then issues.
  std::byte* take_gradient();
  base::Buffer take_staging() { return std::exchange(demand_staging_, {}); }  // empty if Replay staged the gradient

  // Whether the sum over replicas of this step is in main_grad or in flight.
  bool replicas_summed() const { return replicas_summed_; }
  void sum_replicas() { replicas_summed_ = true; }

 private:
  int users_ = 0;  // consumes without a release
  const std::byte* view_ = nullptr;
  base::Buffer demand_weight_;
  std::byte* staging_ = nullptr;
  base::Buffer demand_staging_;
  bool produced_ = false, replicas_summed_ = false;
  int last_produced_ = -1;
};

using ParameterEntries = std::vector<std::unique_ptr<ParameterEntry>>;  // by id

}  // namespace tessera::runtime
