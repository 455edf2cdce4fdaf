#include "tessera/runtime/runtime_options.h"

namespace tessera::runtime {

shard::ParameterSpec with_options(shard::ParameterSpec spec, const shard::ParameterTypes& run_types,
                                  const RuntimeOptions& options) {
  if (options.domain_of) spec.domain = options.domain_of(spec);
  const shard::ParameterTypes types = types_of(spec, run_types);
  shard::set_encoding(spec, options.wire, types);
  shard::set_product(spec, options.products, types);
  shard::set_backward(spec, options.wire_backward.value_or(options.wire), types);
  return spec;
}

shard::Cuts with_options(shard::Cuts cuts, const RuntimeOptions& options, std::size_t domain) {
  cuts.zero = options.zero;
  cuts.one_microbatch = options.one_microbatch;
  cuts.split_masters = options.split_masters;
  cuts.node = domain < options.nodes.size() ? options.nodes[domain] : 1;
  return cuts;
}

}  // namespace tessera::runtime
