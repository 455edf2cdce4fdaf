// A program between a module that runs dry and a runtime: every call happens in the runtime, with weights that travel,
// and in a dry run, whose empty views the module gets. Before each event the time passes that its compute takes.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "tessera/runtime/dry_run.h"
#include "tessera/runtime/runtime.h"

namespace tessera::bench {

// One rank's; one thread. Rows do not travel by index: their ids are not known.
class TimedProgram final : public runtime::Program {
 public:
  // segments: by event of a step, in seconds. All outlive the program.
  TimedProgram(shard::Parallel& parallel, runtime::Runtime& runtime, runtime::DryRun& dry,
               const std::vector<double>& segments)
      : parallel_(parallel), runtime_(runtime), dry_(dry), segments_(segments) {}

  schedule::ParameterId add(shard::ParameterSpec spec) override;
  void add_backward_copies() override;
  const shard::ParameterSpec& spec(schedule::ParameterId id) const override { return dry_.spec(id); }
  const layout::LocalLayout& local_compute(schedule::ParameterId id) const override { return dry_.local_compute(id); }
  bool by_rows(schedule::ParameterId id) const override { return runtime_.by_rows(id); }
  const shard::ParameterTypes& types() const override { return dry_.types(); }
  base::Device device() const override { return dry_.device(); }
  int group_rank() const override { return dry_.group_rank(); }
  int group_size() const override { return dry_.group_size(); }
  bool is_training() const override { return dry_.is_training(); }

  void begin_step(schedule::StepKind kind, int microbatches) override;
  void begin_microbatch() override;
  void end_microbatch() override;
  void end_step() override;
  void publish(std::span<const schedule::ParameterId> weights) override;
  void reduce_amaxes(std::span<float> amaxes) override;

  runtime::WeightView consume(schedule::ParameterId weight, schedule::Pass pass) override;
  void release(schedule::ParameterId weight, schedule::Pass pass) override;
  runtime::GradientBuffer grad_buffer(schedule::ParameterId weight) override;
  void produce(schedule::ParameterId weight) override;
  void gather_rows(schedule::ParameterId weight, const shard::RowIds& ids, void* out, schedule::Pass pass,
                   const std::optional<base::Fence>& written) override;
  runtime::RowGradient grad_rows(schedule::ParameterId weight, const shard::RowIds& ids) override;
  runtime::Issued issue(const runtime::Collective& collective) override;
  void wait(const runtime::Issued& issued) override;
  void stash(std::int64_t bytes, schedule::Pass pass, std::string_view way) override;
  void fetch(std::int64_t bytes, schedule::Pass pass, std::string_view way) override;
  void count_product(quant::Format format, std::int64_t flops) override;

 private:
  void compute();

  shard::Parallel& parallel_;
  runtime::Runtime& runtime_;
  runtime::DryRun& dry_;
  const std::vector<double>& segments_;
  std::map<int, std::pair<base::Buffer, base::Buffer>> travelling_;  // by event: what a collective reads and writes
};

}  // namespace tessera::bench
