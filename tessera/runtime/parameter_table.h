// The registered parameters of a program, and properties of their parts on this rank. The table does not allocate
// tensors. Runtime and DryRun both use this class.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/runtime/runtime_options.h"
#include "tessera/schedule/events.h"
#include "tessera/schedule/schedule.h"
#include "tessera/shard/rank_layout.h"

namespace tessera::runtime {

// Belongs to one rank; used by one thread. Functions with an id throw Error for an unknown id.
class ParameterTable {
 public:
  // A function that is called with the id of each new parameter, when its spec is complete.
  using Added = std::function<void(schedule::ParameterId id)>;

  // `types` are the types of parameters whose spec has no types. Throws the errors of shard::cuts_of.
  ParameterTable(const shard::RankLayout& layout, int rank, const shard::ParameterTypes& types,
                 const RuntimeOptions& options, Added added = {});

  // Registers a weight and returns its id. The runtime options set its domain and its number formats. Every rank
  // registers the same weights in the same order, before the first step. Throws Error for a repeated name, and if
  // add_backward_weights was already called.
  schedule::ParameterId add(shard::ParameterSpec spec);
  // Registers the backward weights, after the last add(). A layer passes only the id of the weight. In a backward pass,
  // consume and release of a weight use its backward weight.
  void add_backward_weights();
  // Ends the registration. Called by each begin_step. Throws Error if backward weights are not registered yet.
  void close();

  int size() const { return static_cast<int>(specs_.size()); }  // number of parameters, backward weights included
  // Returns the number of weights. Ids from weights() to size() - 1 are backward weights.
  int weights() const { return weights_ < 0 ? size() : weights_; }
  const std::vector<shard::ParameterSpec>& specs() const { return specs_; }  // by id
  const shard::ParameterSpec& spec(schedule::ParameterId id) const { return specs_[index(id)]; }
  const std::string& name(schedule::ParameterId id) const { return spec(id).name; }
  std::vector<std::string> names() const;  // names by id, for messages
  const shard::ParameterTypes& types() const { return types_; }
  shard::ParameterTypes types(schedule::ParameterId id) const { return types_of(spec(id), types_); }
  // Returns the part of the weight that this rank reads.
  const layout::LocalLayout& local_compute(schedule::ParameterId id) const;
  // Returns whether the parameter is a table that exchanges rows (shard/rows/rows.h). If true, the layer calls
  // gather_rows instead of consume.
  bool by_rows(schedule::ParameterId id) const { return traits_[index(id)].by_rows; }
  // Returns whether a microbatch's gradient contains only rows (shard::has_row_gradients). If true, the layer calls
  // grad_rows instead of grad_buffer.
  bool row_gradients(schedule::ParameterId id) const { return traits_[index(id)].row_gradients; }
  // Returns the element type of the staging of the parameter's gradient.
  quant::DType staging_type(schedule::ParameterId id) const { return traits_[index(id)].staging; }
  // Returns the bytes that this rank receives in one read of rows.
  std::int64_t row_bytes(schedule::ParameterId id) const { return traits_[index(id)].row_bytes; }
  // Returns the sizes with which a schedule is planned, by id.
  std::vector<schedule::ParameterSize> sizes() const;
  // Returns the ids of the weights in the order of their names. Checkpoints have this order.
  std::vector<schedule::ParameterId> by_name() const;

  // Returns the backward weight of a weight, or kNoParameter if both passes read the weight itself.
  schedule::ParameterId backward_weight(schedule::ParameterId weight) const;
  std::vector<schedule::ParameterId> backward_weights() const;  // by weight: its backward weight, or kNoParameter
  // Returns the parameter that a consume event of the weight reads in a pass: the weight, or its backward weight.
  schedule::ParameterId read_in(schedule::Pass pass, schedule::ParameterId weight) const;
  // Returns the weights, each followed by its backward weight, in the order of their publish events.
  std::vector<schedule::ParameterId> with_backward_weights(std::span<const schedule::ParameterId> weights) const;

  int ranks() const { return ranks_; }                            // number of ranks of the run
  const std::vector<shard::Cuts>& cuts() const { return cuts_; }  // by domain
  const shard::Cuts& cuts(int domain) const { return cuts_[domain_index(domain)]; }
  const shard::ComputeGroup& compute_group(int domain) const { return domains_[domain_index(domain)].compute; }
  // Returns the group name that events have for program collectives over the domain.
  const std::string& program_group(int domain) const { return domains_[domain_index(domain)].program; }

 private:
  struct Traits {
    quant::DType staging = quant::DType::fp32;
    bool by_rows = false, row_gradients = false;
    std::int64_t row_bytes = 0;
    schedule::ParameterId backward_weight = schedule::kNoParameter;
  };
  struct DomainOnRank {
    shard::Place place;
    shard::ComputeGroup compute;
    std::string program;
  };
  schedule::ParameterId register_parameter(shard::ParameterSpec spec);
  Traits traits_of(const shard::ParameterSpec& spec) const;
  std::size_t index(schedule::ParameterId id) const;
  std::size_t domain_index(int domain) const;

  int ranks_ = 1;
  std::vector<shard::Cuts> cuts_;
  std::vector<DomainOnRank> domains_;
  shard::ParameterTypes types_;
  RuntimeOptions options_;
  Added added_;
  std::vector<shard::ParameterSpec> specs_;
  std::vector<Traits> traits_;
  std::unordered_map<std::string, schedule::ParameterId> ids_;
  int weights_ = -1;  // number of weights, without backward weights; -1 before add_backward_weights()
  bool is_closed_ = false;
};

}  // namespace tessera::runtime
