// The layouts of stored weights. A checkpoint contains masters in these layouts, and a change of a shard's borders
// changes which bytes travel. Each case has a hash of all layouts of all ranks; a change of a hash is a change of
// stored bytes.
#include <gtest/gtest.h>

#include <vector>

#include "tessera/models/registry.h"
#include "tessera/nn/mesh_degrees.h"
#include "tessera/shard/formats/format_policy.h"
#include "tessera/shard/parameter_layouts.h"

namespace tessera::models {
namespace {

// FNV-1a over 64-bit numbers.
class Hash {
 public:
  void add(std::int64_t number) {
    for (int byte = 0; byte < 8; ++byte)
      value_ = (value_ ^ (static_cast<std::uint64_t>(number) >> (8 * byte) & 0xFF)) * 0x100000001B3ULL;
  }
  void add(const layout::LocalLayout& local) {
    add(local.size);
    for (const layout::Piece& piece : local.pieces)
      for (const std::int64_t number :
           {piece.box.row, piece.box.rows, piece.box.col, piece.box.cols, piece.offset, piece.stride})
        add(number);
  }
  void add(const shard::RankParts& parts) {
    for (const layout::LocalLayout& local :
         {parts.local_compute, parts.local_home, parts.local_storage, parts.local_state})
      add(local);
    add(parts.state_offset);
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF29CE484222325ULL;
};

struct Case {
  const char* model;
  nn::MeshDegrees degrees;
  quant::Format wire, backward;
  bool zero;
  std::uint64_t hash;
};

std::uint64_t hash_of(const Case& test) {
  const ModelConfigPtr model = read_model_config(find_model_config(test.model, TESSERA_CONFIGS));
  const shard::RankLayout ranks = nn::rank_layout(test.degrees);
  ParameterOptions options{.tp_size = test.degrees.tp};
  if (test.degrees.experts) options.etp = test.degrees.experts->etp, options.ep = test.degrees.experts->ep;
  const shard::ParameterTypes types{.model = quant::DType::bf16};
  Hash hash;
  for (shard::ParameterSpec spec : model->parameters(options)) {
    shard::set_encoding(spec, {.format = test.wire}, types);
    shard::set_backward(spec, {.format = test.backward}, types);
    const shard::Domain& domain = ranks.domains[static_cast<std::size_t>(spec.domain)];
    for (int rank = 0; rank < ranks.mesh.world_size(); ++rank) {
      shard::Cuts cuts = shard::cuts_of(ranks.mesh, domain, rank);
      cuts.zero = test.zero;
      const shard::Place place = shard::place_of(ranks.mesh, domain, rank);
      const shard::ParameterLayouts layouts = shard::layouts_of(spec, cuts);
      hash.add(shard::rank_parts(layouts, cuts, place));
      for (const shard::PlaneSpec& plane : shard::planes_of(spec, types))
        hash.add(shard::rank_parts(shard::plane_layouts(spec, plane, layouts), cuts, place));
    }
  }
  return hash.value();
}

TEST(StoredLayouts, AreThoseOfEarlierVersions) {
  using enum quant::Format;
  const auto experts = [](int tp, int gtp, int dp, int etp, int ep, int egtp) {
    return nn::MeshDegrees{.tp = tp, .gtp = gtp, .dp = dp, .experts = nn::ExpertDegrees{etp, ep, egtp}};
  };
  const Case cases[] = {
      {"llama-tiny-odd", {.tp = 2, .gtp = 3, .dp = 2}, bf16, bf16, true, 1882918735597180061U},
      {"llama-tiny-odd", {.tp = 1, .gtp = 4, .dp = 2}, fp8, fp8, false, 5783587494907105029U},
      {"llama-tiny-odd", {.tp = 1, .gtp = 3, .dp = 2}, fp8_block, bf16, true, 15031540716025501029U},
      {"qwen3-tiny-odd", {.tp = 1, .gtp = 2, .dp = 3}, mxfp8, fp8_block, true, 16018370072344810117U},
      {"llama-tiny", {.tp = 2, .gtp = 2, .dp = 2}, nvfp4, mxfp8, true, 8227984138636673941U},
      {"mixtral-tiny-odd", experts(2, 2, 2, 2, 1, 2), bf16, bf16, true, 9270693356472141301U},
      {"mixtral-tiny-odd", experts(1, 6, 1, 1, 3, 2), bf16, bf16, false, 15578754128402889461U},
      {"qwen3-moe-tiny-odd", experts(1, 4, 2, 1, 2, 1), bf16, bf16, true, 4902796719899991513U},
      {"dots1-tiny-odd", experts(2, 3, 2, 1, 2, 3), bf16, bf16, true, 1554468366740077993U},
  };
  for (const Case& test : cases)
    EXPECT_EQ(test.hash, hash_of(test)) << test.model << ", tp " << test.degrees.tp << ", gtp " << test.degrees.gtp;
}

}  // namespace
}  // namespace tessera::models
