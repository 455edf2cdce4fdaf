// Steps that only say what they would do: a program without memory, without groups, and without other ranks. Its trace
// is what Runtime records of the same step of the same rank; views and buffers are null. That calls come in order is
// checked by Runtime alone.
#pragma once
#include <array>
#include <string>
#include <unordered_set>
#include <vector>

#include "tessera/runtime/event_numbers.h"
#include "tessera/runtime/program.h"
#include "tessera/runtime/runtime_options.h"
#include "tessera/shard/rank_layout.h"

namespace tessera::runtime {

// One rank's; one thread. Ranks that are not asked about cost nothing.
class DryRun : public Program {
 public:
  // Of `rank` of the mesh. types, options: as Runtime's.
  DryRun(const shard::RankLayout& layout, int rank, shard::ParameterTypes types, const RuntimeOptions& options);

  const schedule::Trace& trace() const { return trace_; }  // of the last step begun
  // By event of that step: of a collective, the last event before the program waits for it; of others, the event
  // itself.
  const std::vector<int>& waits() const { return waits_; }
  // By format of weights, operations of the products of that step, and bytes that its collectives bring this rank.
  const std::array<std::int64_t, quant::kFormats>& flops() const { return flops_; }
  const std::array<std::int64_t, quant::kFormats>& activations() const { return activations_; }
  int weights() const { return weights_; }  // ids from here on are backward weights
  // By id; backward weights follow the weights.
  const std::vector<shard::ParameterSpec>& specs() const { return specs_; }
  // By weight: what backward passes read instead, or kNoParameter.
  std::vector<schedule::ParameterId> backward_weights() const;
  const std::vector<shard::Cuts>& cuts() const { return cuts_; }  // by domain

  schedule::ParameterId add(shard::ParameterSpec spec) override;
  void add_backward_weights() override;
  const shard::ParameterSpec& spec(schedule::ParameterId id) const override;
  const layout::LocalLayout& local_compute(schedule::ParameterId id) const override;
  bool by_rows(schedule::ParameterId id) const override;
  const shard::ParameterTypes& types() const override { return types_; }
  base::Device device() const override { return base::kNoDevice; }
  shard::ComputeGroup compute_group(int domain) const override { return groups_.at(static_cast<std::size_t>(domain)); }
  bool is_training() const override { return numbers_.kind() == schedule::StepKind::train; }

  void begin_step(schedule::StepKind kind, int microbatches) override;
  void begin_microbatch() override;
  void end_microbatch() override;
  void end_step() override;
  void publish(std::span<const schedule::ParameterId> weights) override;
  void reduce_amaxes(std::span<float> amaxes) override;

  WeightView consume(schedule::ParameterId weight, schedule::Pass pass) override;
  void release(schedule::ParameterId weight, schedule::Pass pass) override;
  GradientBuffer grad_buffer(schedule::ParameterId id) override;
  void produce(schedule::ParameterId id) override;
  void gather_rows(schedule::ParameterId id, const shard::RowIds& ids, void* out, schedule::Pass pass,
                   const std::optional<base::Fence>& written) override;
  RowGradient grad_rows(schedule::ParameterId id, const shard::RowIds& ids) override;
  Issued issue(const ProgramCollective& collective) override;
  void wait(const Issued& issued) override;
  void stash(std::int64_t bytes, schedule::Pass pass, std::string_view way) override;
  void fetch(std::int64_t bytes, schedule::Pass pass, std::string_view way) override;
  void count_product(quant::Format format, std::int64_t flops) override {
    flops_[static_cast<std::size_t>(format)] += flops;
  }

 private:
  // What a parameter is beside its spec.
  struct Known {
    quant::DType staging = quant::DType::fp32;  // of its gradient
    bool by_rows = false;                       // its rows travel, not the whole
    std::int64_t row_bytes = 0;                 // that a read of rows brings
    schedule::ParameterId backward_weight = schedule::kNoParameter;
    int users = 0;
    bool produced = false;  // in this microbatch
  };
  schedule::ParameterId register_parameter(shard::ParameterSpec spec);
  Known& known(schedule::ParameterId id);
  schedule::ParameterId read_in(schedule::Pass pass, schedule::ParameterId id) const;
  void record(const schedule::Event& event);
  void happens(const schedule::Event& event);

  std::vector<shard::Cuts> cuts_;            // by domain
  std::vector<shard::Place> places_;         // by domain
  std::vector<shard::ComputeGroup> groups_;  // by domain
  std::vector<std::string> group_names_;     // by domain
  int world_size_ = 1;
  shard::ParameterTypes types_;
  RuntimeOptions options_;
  std::vector<shard::ParameterSpec> specs_;
  std::vector<Known> known_;
  std::unordered_set<std::string> names_;
  int weights_ = -1;  // the parameters before the backward weights, once these are added
  EventNumbers numbers_;
  schedule::Trace trace_;
  std::vector<int> waits_;
  std::array<std::int64_t, quant::kFormats> flops_{}, activations_{};
};

}  // namespace tessera::runtime
