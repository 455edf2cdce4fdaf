// A dry run that also passes each call to a runtime, which moves real weights. The module receives the dry run's views,
// which have no memory. Before each event, the program waits for the compute time of the event.
#pragma once
#include <map>
#include <utility>
#include <vector>

#include "tessera/runtime/record/dry_run.h"
#include "tessera/runtime/runtime.h"

namespace tessera::bench {

// One rank's program; used by one thread. Rows by index are not supported, since their ids are unknown.
class TimedProgram final : public runtime::DryRun {
 public:
  // Shares the runtime's parameters. segments[i] is the compute time before event i of a step, in seconds. `segments`,
  // the runtime and its groups must outlive the program.
  TimedProgram(runtime::Runtime& runtime, const std::vector<double>& segments)
      : DryRun(runtime.parameters()), runtime_(runtime), program_(runtime.program()), segments_(segments) {}
  ~TimedProgram() override;

  void begin_step(schedule::StepKind kind, int microbatches) override;
  void begin_microbatch(int microbatch) override;
  void end_microbatch(int microbatch) override;
  void end_step() override;
  void publish(std::span<const schedule::ParameterId> weights) override;
  void reduce_amaxes(std::span<float> amaxes) override;
  void reduce_counts(std::span<std::int64_t> counts) override;

  runtime::WeightView consume(schedule::ParameterId weight, schedule::PassId pass) override;
  void release(schedule::ParameterId weight, schedule::PassId pass) override;
  runtime::GradientBuffer grad_buffer(schedule::ParameterId weight, int microbatch) override;
  void produce(schedule::ParameterId weight, int microbatch) override;
  void gather_rows(schedule::ParameterId weight, const shard::RowIds& ids, void* out, schedule::PassId pass,
                   const std::optional<base::Fence>& written) override;
  runtime::Issued issue(const runtime::ProgramCollective& collective) override;
  void wait(const runtime::Issued& issued) override;
  void record_sum(const runtime::ScatterSum& sum) override;
  runtime::StashId stash(std::span<const runtime::StashItem> items, schedule::PassId pass,
                         runtime::StashWay way) override;
  void fetch(runtime::StashId stash, schedule::PassId pass) override;
  void count_product(quant::Format format, quant::ProductKernel kernel, std::int64_t flops) override;

 private:
  void compute();

  runtime::Runtime& runtime_;
  runtime::Program& program_;
  const std::vector<double>& segments_;
  struct InFlight {
    base::Buffer in, out;
    base::Fence done;
  };
  std::map<int, InFlight> in_flight_;  // by event of a collective
};

}  // namespace tessera::bench
