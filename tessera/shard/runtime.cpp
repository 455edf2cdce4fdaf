#include "tessera/shard/runtime.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

// Adds the time until destruction to `seconds`.
class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

struct Runtime::Entry {
  Entry(ShardedParameter made, const Parallel& parallel)
      : parameter(std::move(made)), materializer(parameter, parallel), reducer(parameter, parallel) {}

  ShardedParameter parameter;
  Materializer materializer;
  Reducer reducer;
  std::optional<Materializer::Gather> gathered;
  std::int64_t gathered_version = -1;
  int users = 0;                        // consumes not yet released
  std::optional<base::Buffer> staging;  // of this microbatch's gradient
  bool produced = false;                // in this microbatch
  std::array<int, 5 * 3> ordinals{};    // by event kind and pass, in this microbatch
};

Runtime::Runtime(Parallel& parallel, ParameterTypes types) : parallel_(parallel), types_(types) {}
Runtime::~Runtime() = default;

ParameterId Runtime::add(ParameterSpec spec) {
  TESSERA_CHECK(!in_step_, "parameter '{}' is added inside a step", spec.name);
  const auto id = static_cast<ParameterId>(entries_.size());
  TESSERA_CHECK(ids_.emplace(spec.name, id).second, "parameter '{}' is added twice", spec.name);
  ShardedParameter parameter =
      make_parameter(std::move(spec), types_, parallel_.tp_rank(), parallel_.gtp_rank(), parallel_.gtp_size());
  entries_.push_back(std::make_unique<Entry>(std::move(parameter), parallel_));
  return id;
}

ShardedParameter& Runtime::parameter(ParameterId id) {
  return entry(id, "parameter").parameter;
}

std::vector<ParameterId> Runtime::by_name() const {
  std::vector<ParameterId> order(entries_.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<ParameterId>(i);
  std::ranges::sort(order, {}, [this](ParameterId id) -> const std::string& {
    return entries_[static_cast<std::size_t>(id)]->parameter.spec.name;
  });
  return order;
}

Runtime::Entry& Runtime::entry(ParameterId id, const char* call) {
  TESSERA_CHECK(id >= 0 && id < size(), "{}: parameter {} of {}", call, id, size());
  return *entries_[static_cast<std::size_t>(id)];
}

void Runtime::begin_step(StepKind kind, int microbatches) {
  TESSERA_CHECK(!in_step_, "begin_step inside a step");
  TESSERA_CHECK(microbatches >= 1, "a step of {} microbatches", microbatches);
  kind_ = kind;
  microbatches_ = microbatches;
  microbatch_ = -1;
  in_step_ = true;
  trace_.clear();
  statistics_ = {};
  for (auto& entry : entries_) {
    entry->parameter.main_grad_written = false;
    entry->ordinals = {};
  }
}

void Runtime::begin_microbatch() {
  TESSERA_CHECK(in_step_ && !in_microbatch_, "begin_microbatch outside a step or inside a microbatch");
  TESSERA_CHECK(microbatch_ + 1 < microbatches_, "microbatch {} of a step of {}", microbatch_ + 2, microbatches_);
  ++microbatch_;
  in_microbatch_ = true;
  comm_ordinals_.clear();
  for (auto& entry : entries_) entry->ordinals = {};
}

void Runtime::end_microbatch() {
  TESSERA_CHECK(in_microbatch_, "end_microbatch without begin_microbatch");
  for (const auto& entry : entries_)
    TESSERA_CHECK(entry->users == 0, "end of microbatch {}: '{}' is consumed and not released", microbatch_,
                  entry->parameter.spec.name);
  if (is_training()) reduce_microbatch();
  if (is_training() && microbatch_ + 1 == microbatches_) reduce_replicas();
  in_microbatch_ = false;
}

void Runtime::end_step() {
  TESSERA_CHECK(in_step_ && !in_microbatch_, "end_step outside a step or inside a microbatch");
  TESSERA_CHECK(microbatch_ + 1 == microbatches_, "the step ends after {} of {} microbatches", microbatch_ + 1,
                microbatches_);
  in_step_ = false;
}

void Runtime::record(EventKind kind, Pass pass, ParameterId id) {
  Entry& entry = *entries_[static_cast<std::size_t>(id)];
  int& ordinal = entry.ordinals[static_cast<std::size_t>(kind) * 3 + static_cast<std::size_t>(pass)];
  trace_.push_back(Event{.kind = kind,
                         .step = kind_,
                         .microbatch = in_microbatch_ ? microbatch_ : -1,
                         .pass = pass,
                         .parameter = id,
                         .ordinal = ordinal++});
}

WeightView Runtime::consume(ParameterId id, Pass pass) {
  Entry& entry = this->entry(id, "consume");
  TESSERA_CHECK(in_microbatch_, "'{}' is consumed outside a microbatch", entry.parameter.spec.name);
  record(EventKind::consume, pass, id);
  const base::DType type = entry.parameter.types.model;
  ++entry.users;
  if (entry.materializer.is_resident()) return {entry.parameter.weight.data(), type};
  if (!entry.gathered) {
    Stopwatch exposed(statistics_.exposed_seconds);
    entry.gathered = entry.materializer.start(entry.parameter, parallel_, pool_);
    entry.gathered->done.synchronize();
    entry.gathered_version = entry.parameter.version;
    statistics_.gathered_bytes += entry.materializer.received_bytes();
  }
  TESSERA_CHECK(entry.gathered_version == entry.parameter.version,
                "'{}': the gathered weight has version {}, the stored {}", entry.parameter.spec.name,
                entry.gathered_version, entry.parameter.version);
  return {entry.gathered->weight.data(), type};
}

void Runtime::release(ParameterId id, Pass pass) {
  Entry& entry = this->entry(id, "release");
  TESSERA_CHECK(entry.users > 0, "'{}' is released more often than consumed", entry.parameter.spec.name);
  record(EventKind::release, pass, id);
  if (--entry.users > 0 || !entry.gathered) return;
  pool_.give_back(std::move(entry.gathered->weight));
  if (entry.gathered->scratch.size() > 0) pool_.give_back(std::move(entry.gathered->scratch));
  entry.gathered.reset();
}

GradientBuffer Runtime::grad_buffer(ParameterId id) {
  Entry& entry = this->entry(id, "grad_buffer");
  TESSERA_CHECK(in_microbatch_ && is_training(), "the gradient of '{}' is asked for outside a training microbatch",
                entry.parameter.spec.name);
  TESSERA_CHECK(entry.parameter.spec.trainable, "'{}' is frozen and has no gradient", entry.parameter.spec.name);
  if (!entry.staging) entry.staging = pool_.take(entry.reducer.staging_bytes());
  return {entry.staging->data(), entry.parameter.types.accumulator, entry.produced};
}

void Runtime::produce(ParameterId id) {
  Entry& entry = this->entry(id, "produce");
  TESSERA_CHECK(entry.staging.has_value(), "'{}' is produced without grad_buffer", entry.parameter.spec.name);
  record(EventKind::produce, Pass::backward, id);
  entry.produced = true;
}

void Runtime::publish(ParameterId id) {
  Entry& entry = this->entry(id, "publish");
  TESSERA_CHECK(entry.users == 0, "'{}' is published while it is consumed", entry.parameter.spec.name);
  record(EventKind::publish, Pass::forward, id);
  ++entry.parameter.version;
}

void Runtime::comm(const std::string& group, const std::string& op, std::int64_t bytes, Pass pass) {
  trace_.push_back(Event{.kind = EventKind::comm,
                         .step = kind_,
                         .microbatch = in_microbatch_ ? microbatch_ : -1,
                         .pass = pass,
                         .ordinal = comm_ordinals_[group + "/" + op + "/" + std::string(name_of(pass))]++,
                         .group = group,
                         .op = op,
                         .bytes = bytes});
}

// Every rank takes part for every trainable parameter, with zeros where it produced nothing.
void Runtime::reduce_microbatch() {
  std::vector<std::pair<Entry*, Reducer::Exchange>> exchanges;
  for (auto& owned : entries_) {
    Entry& entry = *owned;
    if (!entry.parameter.spec.trainable) continue;
    if (!entry.produced) {
      ++statistics_.unproduced;
      if (!entry.staging) entry.staging = pool_.take(entry.reducer.staging_bytes());
      entry.staging->fill_zero();
    }
    Stopwatch exposed(statistics_.exposed_seconds);
    exchanges.emplace_back(&entry, entry.reducer.start(entry.parameter, parallel_, std::move(*entry.staging), pool_));
    entry.staging.reset();
    entry.produced = false;
  }
  for (auto& [entry, exchange] : exchanges) {
    {
      Stopwatch exposed(statistics_.exposed_seconds);
      exchange.done.synchronize();
    }
    entry->reducer.finish(entry->parameter, std::move(exchange), pool_);
    statistics_.reduced_bytes += entry->reducer.received_bytes();
  }
}

// After the last microbatch: replicas are summed in replica order.
void Runtime::reduce_replicas() {
  const int replicas = parallel_.dp_size();
  if (replicas == 1) return;
  Stopwatch exposed(statistics_.exposed_seconds);
  std::vector<base::Fence> fences;
  for (auto& entry : entries_) {
    ShardedParameter& parameter = entry->parameter;
    if (!parameter.spec.trainable) continue;
    const std::int64_t count = parameter.shard_elements();
    fences.push_back(parallel_.dp->all_reduce(parameter.main_grad.data(), count, parameter.types.accumulator));
    statistics_.reduced_bytes +=
        2 * (replicas - 1) * count / replicas * static_cast<std::int64_t>(base::size_of(parameter.types.accumulator));
  }
  for (const base::Fence& fence : fences) fence.synchronize();
}

}  // namespace tessera::shard
