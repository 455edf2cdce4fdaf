// A Program that only records its steps, without memory, communicators and other ranks. The recorded trace equals the
// trace that Runtime records for the step on this rank. Pointers in views and buffers are null.
#pragma once
#include <array>
#include <map>
#include <memory>
#include <vector>

#include "tessera/runtime/program.h"
#include "tessera/runtime/record/recorder.h"

namespace tessera::runtime {

// Records the steps of one rank. Used by one thread.
class DryRun : public Program {
 public:
  // `types` and `options` have the meaning of Runtime's arguments.
  DryRun(const shard::RankLayout& layout, int rank, const shard::ParameterTypes& types, const RuntimeOptions& options);
  // Uses the parameters of a runtime. The runtime must outlive the dry run.
  explicit DryRun(ParameterTable& parameters) : parameters_(parameters), recorder_(parameters_) {}
  DryRun(const DryRun&) = delete;
  DryRun& operator=(const DryRun&) = delete;

  const schedule::Trace& trace() const { return recorder_.trace(); }  // trace of the last step begun
  // By event of the last step begun. For a collective: the index of the last event before the program waits for the
  // collective. For other events: their own index.
  const std::vector<int>& waits() const { return waits_; }
  // By event of the last step begun: bytes that this rank receives in a collective of the program; 0 for other events.
  const std::vector<std::int64_t>& received() const { return received_; }
  // By number format, for the last step begun. flops(): of products with weights. activations(): bytes that this rank
  // receives in the program's collectives.
  const std::array<std::int64_t, quant::kFormats>& flops() const { return flops_; }
  const std::array<std::int64_t, quant::kFormats>& activations() const { return activations_; }

  // Returns the bytes of the transfer arena that the steps so far need.
  std::int64_t transfer_arena() const { return transfers_->peak(); }

  ParameterTable& parameters() override { return parameters_; }
  base::Device device() const override { return base::kNoDevice; }
  const shard::ComputeGroup& compute_group(int domain) const override { return parameters_.compute_group(domain); }
  bool is_training() const override { return recorder_.is_training(); }

  void begin_step(schedule::StepKind kind, int microbatches) override;
  void begin_microbatch(int microbatch) override;
  void end_microbatch(int microbatch) override;
  void end_step() override { recorder_.end_step(); }
  void publish(std::span<const schedule::ParameterId> weights) override;
  void reduce_amaxes(std::span<float> amaxes) override;
  void reduce_counts(std::span<std::int64_t> counts) override;
  Issued exchange_matrices(const MatrixExchange& exchange) override;

  WeightView consume(schedule::ParameterId weight, schedule::PassId pass) override;
  void release(schedule::ParameterId weight, schedule::PassId pass) override;
  GradientBuffer grad_buffer(schedule::ParameterId id, int microbatch) override;
  void produce(schedule::ParameterId id, int microbatch) override;
  void gather_rows(schedule::ParameterId id, const shard::RowIds& ids, void* out, schedule::PassId pass,
                   const std::optional<base::Fence>& written) override;
  RowGradient grad_rows(schedule::ParameterId id, const shard::RowIds& ids, int microbatch) override;
  Issued issue(const ProgramCollective& collective) override;
  void wait(const Issued& issued) override;
  TransferMemory take_transfer(std::int64_t bytes) override { return transfers_->take(bytes); }
  void record_sum(const ScatterSum& sum) override;
  void add_in_order(void* /*out*/, std::span<const void* const> /*parts*/, quant::DType /*type*/,
                    std::int64_t /*count*/) override {}
  StashId stash(std::span<const StashItem> items, schedule::PassId pass, StashWay way) override;
  void fetch(StashId stash, schedule::PassId pass) override;
  void count_product(quant::Format format, quant::ProductKernel /*kernel*/, std::int64_t flops) override {
    flops_[static_cast<std::size_t>(format)] += flops;
  }

 private:
  struct Use {
    int users = 0;          // consume events without a release event
    bool produced = false;  // whether the gradient was produced
  };
  Use& use(schedule::ParameterId id, int microbatch);
  void record(const schedule::Event& event);
  void record_update(const schedule::Event& event);

  std::unique_ptr<ParameterTable> own_;  // null: parameters_ belongs to a runtime
  ParameterTable& parameters_;
  Recorder recorder_;
  std::shared_ptr<TransferArena> transfers_ = std::make_shared<TransferArena>(base::kNoDevice);  // has no memory
  std::map<int, std::vector<Use>> uses_;  // by open microbatch, then by parameter
  std::vector<int> waits_;
  std::vector<std::int64_t> received_;
  std::array<std::int64_t, quant::kFormats> flops_{}, activations_{};
};

}  // namespace tessera::runtime
