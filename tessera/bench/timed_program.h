// A program that makes each call on a dry run and on a runtime, which moves real weights. The module receives the dry
// run's views, which have no memory. Before each event, the program waits for the compute time of the event.
#pragma once
#include <map>
#include <type_traits>
#include <vector>

#include "tessera/runtime/record/dry_run.h"
#include "tessera/runtime/runtime.h"

namespace tessera::bench {

// One rank's program; used by one thread. Rows by index are not supported, since their ids are unknown.
class TimedProgram final : public runtime::Program {
 public:
  // Shares the runtime's parameters. segments[i] is the compute time before event i of a step, in seconds. `segments`,
  // the runtime and its groups must outlive the program.
  TimedProgram(runtime::Runtime& runtime, const std::vector<double>& segments)
      : dry_(runtime.parameters()), runtime_(runtime), program_(runtime.program()), segments_(segments) {}
  ~TimedProgram() override;

  const schedule::Trace& trace() const { return dry_.trace(); }
  const std::vector<int>& waits() const { return dry_.waits(); }  // DryRun::waits

  runtime::ParameterTable& parameters() override { return dry_.parameters(); }
  base::Device device() const override { return dry_.device(); }
  const shard::ComputeGroup& compute_group(int domain) const override { return dry_.compute_group(domain); }
  bool is_training() const override { return dry_.is_training(); }

  void begin_step(schedule::StepKind kind, int microbatches) override {
    both(&Program::begin_step, kind, microbatches);
  }
  void begin_microbatch(int microbatch) override { both(&Program::begin_microbatch, microbatch); }
  void end_microbatch(int microbatch) override { both(&Program::end_microbatch, microbatch); }
  void end_step() override;
  void publish(std::span<const schedule::ParameterId> weights) override;
  void reduce_amaxes(std::span<float> amaxes) override { timed(&Program::reduce_amaxes, amaxes); }
  void reduce_counts(std::span<std::int64_t> counts) override { timed(&Program::reduce_counts, counts); }
  runtime::Issued exchange_matrices(const runtime::MatrixExchange& exchange) override {
    return timed(&Program::exchange_matrices, exchange);
  }

  runtime::WeightView consume(schedule::ParameterId weight, schedule::PassId pass) override {
    return timed(&Program::consume, weight, pass);
  }
  void release(schedule::ParameterId weight, schedule::PassId pass) override { timed(&Program::release, weight, pass); }
  runtime::GradientBuffer grad_buffer(schedule::ParameterId weight, int microbatch) override;
  void produce(schedule::ParameterId weight, int microbatch) override { timed(&Program::produce, weight, microbatch); }
  void gather_rows(schedule::ParameterId weight, const shard::RowIds& ids, void* out, schedule::PassId pass,
                   const std::optional<base::Fence>& written) override;
  runtime::RowGradient grad_rows(schedule::ParameterId weight, const shard::RowIds& ids, int microbatch) override {
    return dry_.grad_rows(weight, ids, microbatch);
  }
  runtime::Issued issue(const runtime::ProgramCollective& collective) override;
  void wait(const runtime::Issued& issued) override;
  runtime::TransferMemory take_transfer(std::int64_t bytes) override { return dry_.take_transfer(bytes); }
  void record_sum(const runtime::ScatterSum& sum) override { timed(&Program::record_sum, sum); }
  void add_in_order(void* /*out*/, std::span<const void* const> /*parts*/, quant::DType /*type*/,
                    std::int64_t /*count*/) override {}
  runtime::StashId stash(std::span<const runtime::StashItem> items, schedule::PassId pass,
                         runtime::StashWay way) override {
    return timed(&Program::stash, items, pass, way);  // both programs number stashes in the same order
  }
  void fetch(runtime::StashId stash, schedule::PassId pass) override { timed(&Program::fetch, stash, pass); }
  void count_product(quant::Format format, quant::ProductKernel kernel, std::int64_t flops) override {
    both(&Program::count_product, format, kernel, flops);
  }

 private:
  // Makes a call on both programs. Returns the result of the dry run.
  template <typename Result, typename... P>
  Result both(Result (Program::*call)(P...), std::type_identity_t<P>... arguments) {
    (program_.*call)(arguments...);
    return (dry_.*call)(arguments...);
  }
  // Also waits for the compute time that precedes the event of the call.
  template <typename Result, typename... P>
  Result timed(Result (Program::*call)(P...), std::type_identity_t<P>... arguments) {
    compute();
    return both(call, arguments...);
  }
  void compute();  // waits for the compute time that precedes the next event of the step

  runtime::DryRun dry_;
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
