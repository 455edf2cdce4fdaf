#include "tessera/runtime/update_calls.h"

#include "tessera/schedule/buckets.h"
#include "tessera/shard/formats/encoded.h"

namespace tessera::runtime {
namespace {

using schedule::ParameterId;

// Returns the number of amaxes that the ranks reduce for the casts of a bucket; 0 if no cast needs them.
std::size_t shared_amaxes(const ParameterTable& parameters, std::span<const ParameterId> bucket) {
  std::int64_t matrices = 0;
  bool has_whole = false;
  for (const ParameterId id : parameters.with_backward_weights(bucket)) {
    const shard::ParameterSpec& spec = parameters.spec(id);
    if (!spec.encoding) continue;
    matrices += shard::matrices_of(spec);
    has_whole = has_whole || shard::has_tensor_scale(*spec.encoding);
  }
  return has_whole ? static_cast<std::size_t>(matrices) : 0;
}

}  // namespace

void update_biases(Program& program, std::span<const ParameterId> biases, std::span<std::int64_t> counts,
                   const std::function<bool()>& update) {
  if (biases.empty()) return;
  program.reduce_counts(counts);
  if (update()) program.publish(biases);
}

void update_buckets(Program& program, std::vector<ParameterId> order,
                    const std::function<void(std::span<const ParameterId>)>& update) {
  const ParameterTable& parameters = program.parameters();
  std::erase_if(order, [&](ParameterId id) { return !parameters.spec(id).trainable; });
  const auto elements = [&](ParameterId id) { return parameters.spec(id).compute.shape.elements(); };
  for (const std::vector<ParameterId>& bucket : schedule::optimizer_buckets(order, elements)) {
    update(bucket);
    program.publish(bucket);
  }
}

void dry_update(Program& program, const schedule::Trace& step, const UpdateParts& parts) {
  if (!parts.scales.empty()) program.reduce_amaxes(parts.scales);
  std::vector<std::int64_t> counts(parts.biases.size() * static_cast<std::size_t>(parts.experts));
  update_biases(program, parts.biases, counts, [] { return true; });
  const ParameterTable& parameters = program.parameters();
  update_buckets(program, schedule::order_of_first_uses(step, parameters.weights()),
                 [&](std::span<const ParameterId> bucket) {
                   if (parts.exchanges)
                     for (const MatrixExchange& exchange : parts.exchanges(bucket))
                       program.wait(program.exchange_matrices(exchange));
                   std::vector<float> amaxes(shared_amaxes(parameters, bucket));
                   if (!amaxes.empty()) program.reduce_amaxes(amaxes);
                 });
}

}  // namespace tessera::runtime
