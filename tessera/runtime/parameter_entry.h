// One parameter of a running rank: its shard, its ways, and the current memory of its gathered weight and its gradient.
// Only the functions of the class change its private members. `parameter` has its own rules (shard/parameter.h).
//
// The functions are called in this order:
//   gathered weight   set_gathered (by Replay) or hold_weight (by OnDemand), then consumed and released for each use
//   columnwise copy   set_columnwise or hold_columnwise, then columnwise_consumed and columnwise_released
//   gradient          in each microbatch: stage, produced, take_gradient (the reduction is then issued) or written
//                     once a step, after the last reduction: sum_replicas
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/memory/buffer.h"
#include "tessera/quant/formats/format.h"
#include "tessera/schedule/events.h"
#include "tessera/shard/rows/rows.h"
#include "tessera/shard/ways/materialize.h"
#include "tessera/shard/ways/reduction.h"
#include "tessera/shard/ways/replicas.h"
#include "tessera/shard/ways/way_bytes.h"

namespace tessera::runtime {

class ParameterEntry {
 public:
  ParameterEntry(shard::ShardedParameter made, const shard::ParallelGroups& parallel, const shard::Cuts& cuts);

  const std::string& name() const { return parameter.spec.name; }
  int domain() const { return parameter.spec.domain; }

  shard::ShardedParameter parameter;
  // Set once, by the constructor.
  shard::Ways ways;                            // ways of the parameter, with the bytes that this rank receives
  quant::Format format = quant::Format::bf16;  // number format in which the weight travels
  shard::Materializer materializer;
  shard::Reducer reducer;
  shard::Replicas replicas;
  std::optional<shard::RowGather> rows;  // set only for a table that exchanges rows (shard/rows/rows.h)

  void begin_step();

  // The gathered weight. RunningProgram counts its users. Replay or OnDemand sets its address.
  bool is_consumed() const { return users_ > 0; }
  const std::byte* view() const { return view_; }
  void set_gathered(const std::byte* weight) { view_ = weight; }
  void consumed() { ++users_; }
  // Only while is_consumed() is true. Returns whether the last user has released the weight.
  bool released() { return --users_ == 0; }
  // hold_weight stores the buffer into which OnDemand gathered the weight. take_weight returns this buffer, or an empty
  // buffer if OnDemand did not gather the weight.
  void hold_weight(base::Buffer weight);
  base::Buffer take_weight() { return std::exchange(demand_weight_, {}); }

  // The columnwise copy of the weight (quant/formats/columnwise.h). RunningProgram counts its users. Replay or OnDemand
  // sets its address.
  bool has_columnwise() const { return materializer.columnwise_bytes() > 0; }
  bool is_columnwise_consumed() const { return columnwise_users_ > 0; }
  quant::Quantized columnwise() const { return materializer.columnwise_at(parameter, columnwise_); }
  void set_columnwise(std::byte* copy) { columnwise_ = copy; }
  void columnwise_consumed() { ++columnwise_users_; }
  // Only while is_columnwise_consumed() is true. Returns whether the last user has released the copy.
  bool columnwise_released() { return --columnwise_users_ == 0; }
  // hold_columnwise stores the buffer of a copy that OnDemand made. take_columnwise returns this buffer, or an empty
  // buffer if OnDemand did not make the copy.
  void hold_columnwise(base::Buffer copy);
  base::Buffer take_columnwise() { return std::exchange(demand_columnwise_, {}); }

  // The gradient of the current microbatch. Returns the staging of the gradient. Returns null if grad_buffer was not
  // called yet or the reduction is already issued.
  std::byte* staging() const { return staging_; }
  // Returns whether the gradient is produced and its reduction is not issued yet.
  bool is_produced() const { return produced_; }
  int last_produced() const { return last_produced_; }  // microbatch of this step's last produce event; -1: not yet
  void stage(std::byte* staging) { staging_ = staging; }
  void hold_staging(base::Buffer staging);  // stages the gradient in a buffer of OnDemand
  void produced(int microbatch) { produced_ = true, last_produced_ = microbatch; }
  // Only while is_produced() is true. Returns the staging of the gradient. The caller then issues the reduction.
  std::byte* take_gradient();
  // Instead of take_gradient, if layers write main_grad: main_grad is then complete for work enqueued on compute.
  void written();
  // Returns the buffer of hold_staging, or an empty buffer if Replay staged the gradient.
  base::Buffer take_staging() { return std::exchange(demand_staging_, {}); }

  // Whether this step needs no further sum over replicas: it is in flight or in main_grad, or the gradient is zero.
  bool replicas_summed() const { return replicas_summed_; }
  void sum_replicas() { replicas_summed_ = true; }

 private:
  int users_ = 0;             // consume events without a release event
  int columnwise_users_ = 0;  // those of backward passes, if they read a columnwise copy
  std::byte* columnwise_ = nullptr;
  base::Buffer demand_columnwise_;
  const std::byte* view_ = nullptr;
  base::Buffer demand_weight_;
  std::byte* staging_ = nullptr;
  base::Buffer demand_staging_;
  bool produced_ = false, replicas_summed_ = false;
  int last_produced_ = -1;
};

using ParameterEntries = std::vector<std::unique_ptr<ParameterEntry>>;  // by id

}  // namespace tessera::runtime
