// Checks that the host calls the collectives of a step in the order that the checker examines (call_order in
// schedule/check/together.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <utility>

#include "tessera/comm/local/world.h"
#include "tessera/runtime/runtime.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::runtime::recorded_calls {
namespace {

using schedule::Pass;

// The collectives that the host of a rank has called, in order.
using Calls = std::vector<const comm::Communicator*>;

// A communicator that records its calls.
class Recorded : public comm::Communicator {
 public:
  Recorded(std::unique_ptr<Communicator> inner, Calls& calls) : inner_(std::move(inner)), calls_(calls) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  const std::string& name() const override { return inner_->name(); }
  base::Lane& lane() override { return inner_->lane(); }
  base::Fence all_gather(const void* send, void* recv, std::span<const std::int64_t> counts,
                         quant::DType type) override {
    return called()->all_gather(send, recv, counts, type);
  }
  base::Fence all_to_all(const void* send, std::span<const std::int64_t> send_counts, void* recv,
                         std::span<const std::int64_t> recv_counts, quant::DType type) override {
    return called()->all_to_all(send, send_counts, recv, recv_counts, type);
  }
  base::Fence reduce_scatter(const void* send, void* recv, std::span<const std::int64_t> counts, quant::DType type,
                             comm::ReduceOp op) override {
    return called()->reduce_scatter(send, recv, counts, type, op);
  }
  base::Fence all_reduce(void* data, std::int64_t count, quant::DType type, comm::ReduceOp op) override {
    return called()->all_reduce(data, count, type, op);
  }
  base::Fence broadcast(void* data, std::int64_t count, quant::DType type, int root) override {
    return called()->broadcast(data, count, type, root);
  }
  base::Fence barrier() override { return called()->barrier(); }
  base::Fence exchange(std::vector<comm::Send> sends, std::vector<comm::Receive> receives) override {
    return called()->exchange(std::move(sends), std::move(receives));
  }
  base::Fence launch(std::function<void(base::CudaStream)> graph, std::chrono::milliseconds expected) override {
    return inner_->launch(std::move(graph), expected);
  }
  void cancel() override { inner_->cancel(); }

 private:
  Communicator* called() {
    calls_.push_back(this);
    return inner_.get();
  }

  std::unique_ptr<Communicator> inner_;
  Calls& calls_;
};

class RecordedWorld : public comm::World {
 public:
  RecordedWorld(comm::World& inner, Calls& calls) : inner_(inner), calls_(calls) {}

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string_view backend() const override { return inner_.backend(); }
  std::unique_ptr<comm::Communicator> make_group(const std::string& name, const std::vector<std::vector<int>>& groups,
                                                 comm::Traffic traffic) override {
    auto made = inner_.make_group(name, groups, traffic);
    return made ? std::make_unique<Recorded>(std::move(made), calls_) : nullptr;
  }
  std::unique_ptr<rendezvous::Board> make_board() override { return inner_.make_board(); }

 private:
  comm::World& inner_;
  Calls& calls_;
};

// Returns the roles of the recorded calls. Calls on communicators without a role in a call order are left out.
std::vector<std::string> roles_of(const Calls& calls, const shard::ParallelGroups& parallel) {
  std::map<const comm::Communicator*, std::string> roles{{parallel.casts, schedule::kCastGroup},
                                                         {&parallel.program(), "users"}};
  using enum mesh::Transfer;
  for (const mesh::Transfer transfer : {gather, gather_compute, reduce_compute, reduce, replicas})
    if (parallel.has(0, transfer)) roles.emplace(&parallel.of(0, transfer), name_of(transfer));
  std::vector<std::string> found;
  for (const comm::Communicator* group : calls)
    if (const auto role = roles.find(group); role != roles.end()) found.push_back(role->second);
  return found;
}

constexpr int kWeights = 4;

// Runs a step in which each pass of each weight is followed by a collective of the program.
void train(Runtime& runtime) {
  std::array<float, 16> activations{};
  constexpr std::int64_t count = activations.size();
  Program& program = runtime.program();
  const auto use = [&](int id, schedule::PassId pass) {
    program.consume(id, pass);
    program.release(id, pass);
    program.wait(program.issue({.out = activations.data(), .counts = {&count, 1}, .pass = pass}));
  };
  program.begin_step(schedule::StepKind::train, 2);
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    program.begin_microbatch(microbatch);
    for (int id = 0; id < kWeights; ++id) use(id, {microbatch, Pass::forward});
    for (int id = kWeights - 1; id >= 0; --id) {
      use(id, {microbatch, Pass::backward});
      std::ranges::fill_n(static_cast<float*>(program.grad_buffer(id, microbatch).data),
                          runtime.parameter(id).local_compute.size, 1.0F);
      program.produce(id, microbatch);
    }
    program.end_microbatch(microbatch);
  }
  program.end_step();
}

// Publishes the weights in buckets of two.
void update(Runtime& runtime) {
  for (const std::array<schedule::ParameterId, 2>& bucket : {std::array{0, 1}, {2, 3}}) {
    std::array<float, 1> amax{};
    runtime.program().reduce_amaxes(amax);
    runtime.program().publish(bucket);
  }
}

// Every rank stores and updates rows of every weight, so each call of a call order is one collective.
void expect_calls_of_the_schedule(const RuntimeOptions& options) {
  comm::run_local(8, {}, [&](comm::World& local) {
    Calls calls;
    RecordedWorld world(local, calls);
    shard::ParallelGroups parallel = shard::dense_parallel(world, 2, 2, 2, /*with_casts=*/true);
    Runtime runtime(parallel, {}, options);
    for (int id = 0; id < kWeights; ++id)
      runtime.parameters().add(
          {.name = "w" + std::to_string(id), .dims = {16, 4}, .compute = layout::cut_rows({16, 4}, {{"all", 16}}, 2)});
    for (int step = 0; step < 2; ++step) {
      train(runtime);
      if (step == 0) update(runtime);
    }
    calls.clear();
    update(runtime);
    const schedule::Trace trace = runtime.trace();
    train(runtime);
    const schedule::CallOrder order =
        call_order(trace, runtime.parameters().sizes(), *runtime.schedule(schedule::StepKind::train, 2));
    std::vector<std::string> expected;
    for (const schedule::CollectiveCall& call : order.calls)
      expected.push_back(order.roles[static_cast<std::size_t>(call.role)]);
    EXPECT_EQ(roles_of(calls, parallel), expected) << "rank " << local.rank();
    EXPECT_EQ(std::ranges::count(expected, "replicas"), 2 * kWeights);
  });
}

TEST(CallOrder, IsTheOrderInWhichTheHostCallsTheCollectives) {
  for (const std::int64_t coalesce_bytes : {0, 1 << 20})
    for (const std::int64_t budget : {std::int64_t{0}, schedule::kUnlimited})
      expect_calls_of_the_schedule(
          {.zero = true, .gather_budget = budget, .reduce_budget = budget, .coalesce_bytes = coalesce_bytes});
}

}  // namespace
}  // namespace tessera::runtime::recorded_calls
