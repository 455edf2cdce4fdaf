// Checks the tokens that a model generates with its key/value cache, on every mesh.
#include "tessera/serve/generation.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <mutex>
#include <set>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/models/decoder/decoder.h"

namespace tessera::serve {
namespace {

using Tokens = std::vector<std::int64_t>;

models::DecoderConfig dense_model() {
  models::DecoderConfig config;
  config.vocab_size = 53;
  config.hidden_size = 26;
  config.intermediate_size = 19;
  config.num_layers = 2;
  config.num_heads = 6;
  config.num_kv_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 64;
  config.has_head_norms = true;
  config.has_qkv_bias = true;
  return config;
}
models::DecoderConfig sparse_model() {
  models::DecoderConfig config = dense_model();
  config.experts = models::ExpertsConfig{.count = 5, .per_token = 2, .width = 7, .sparse = {true, false}};
  return config;
}

// Returns a number in [-1, 1) that depends on the name of a tensor and the logical index of an element.
double element(const std::string& name, std::int64_t row, std::int64_t col) {
  std::uint64_t x = 0;
  const auto add = [&](std::uint64_t value) {  // the finalizer of SplitMix64
    x += value + 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    x ^= x >> 31;
  };
  for (const char letter : name) add(static_cast<unsigned char>(letter));
  add(static_cast<std::uint64_t>(row));
  add(static_cast<std::uint64_t>(col));
  return std::ldexp(static_cast<double>(x >> 11), -52) - 1;
}
void fill(const checkpoint::LoadTensor& request) {
  for (const layout::Piece& piece : request.local.pieces)
    for (std::int64_t row = 0; row < piece.box.rows; ++row)
      for (std::int64_t col = 0; col < piece.box.cols; ++col) {
        const double value = element(request.name, piece.box.row + row, piece.box.col + col);
        const std::int64_t at = piece.offset + row * piece.stride + col;
        if (request.dtype == quant::DType::fp64)
          static_cast<double*>(request.data)[at] = value;
        else if (request.dtype == quant::DType::fp32)
          static_cast<float*>(request.data)[at] = static_cast<float>(value);
        else
          static_cast<quant::bfloat16*>(request.data)[at] = quant::bfloat16(static_cast<float>(value));
      }
}

struct ModelRun {
  models::DecoderConfig config = dense_model();
  int tp = 1, gtp = 1;
  quant::DType type = quant::DType::fp64;
  bool is_scheduled = false;
  FrozenModel::ReadWeight read = fill;

  models::StepOptions options() const {
    nn::MeshDegrees degrees{.tp = tp, .gtp = gtp};
    const models::ModelOptions model{
        .max_positions = config.max_position_embeddings, .embedding = {.per_microbatch = 64}, .is_frozen = true};
    if (config.experts) degrees.experts = {.etp = tp, .ep = 1, .egtp = gtp};
    const quant::DType accumulator = quant::accumulator_of(type);
    return {
        .build = [config = config, model](
                     const nn::Context& context) { return std::make_unique<models::Decoder>(config, context, model); },
        .layout = nn::rank_layout(degrees),
        .types = {.model = type, .accumulator = accumulator, .wire = accumulator},
        .sequence_parallel = config.experts.has_value(),
        .runtime = {.scheduled = is_scheduled, .pushes = is_scheduled}};
  }
  void on_every_rank(const std::function<void(FrozenModel&)>& body) const {
    comm::run_local(tp * gtp, {}, [&](comm::World& world) {
      FrozenModel model(world, options());
      model.load(read);
      body(model);
    });
  }
  // Checks that all ranks have the same tokens.
  Tokens generate(const Generation& generation) const {
    std::mutex mutex;
    std::vector<Tokens> found;
    on_every_rank([&](FrozenModel& model) {
      const Tokens tokens = serve::generate(model, generation);
      const std::lock_guard lock(mutex);
      found.push_back(tokens);
    });
    for (const Tokens& tokens : found) EXPECT_EQ(tokens, found.front());
    return found.front();
  }
};

const Generation kGreedy{.prompt = {3, 50, 7, 7, 21}, .tokens = 40, .stop = {}, .sampling = {}};

// Returns the tokens that the model generates without a cache: for each token, a pass over all earlier tokens.
Tokens without_cache(FrozenModel& model, const Generation& generation, std::vector<at::Tensor>& logits) {
  Tokens all = generation.prompt;
  for (std::int64_t i = 0; i < generation.tokens; ++i) {
    nn::KeyValueCache cache = model.make_cache(static_cast<std::int64_t>(all.size()));
    logits.push_back(model.next_logits(all, cache));
    const at::Tensor wide = logits.back().to(at::kDouble);
    all.push_back(choose_token({wide.const_data_ptr<double>(), static_cast<std::size_t>(wide.numel())},
                               generation.sampling, cache.tokens));
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(generation.prompt.size()), all.end()};
}

// Returns the greatest difference, relative to the greatest logit.
double distance(const at::Tensor& a, const at::Tensor& b) {
  return a.sub(b).abs().max().item<double>() / b.abs().max().item<double>();
}

// Both sides add the same terms in different orders. The relative error in fp64 is a few times 1e-14.
TEST(Generation, WithACacheEqualsPassesOverAllTokens) {
  for (const models::DecoderConfig& config : {dense_model(), sparse_model()}) {
    const ModelRun run{.config = config};
    Generation drawn = kGreedy;
    drawn.sampling.temperature = 2;
    run.on_every_rank([&](FrozenModel& model) {
      std::vector<at::Tensor> expected;
      const Tokens tokens = without_cache(model, drawn, expected);
      EXPECT_EQ(generate(model, drawn), tokens);
      EXPECT_GT(std::set<std::int64_t>(tokens.begin(), tokens.end()).size(), 10u);
      nn::KeyValueCache cache = model.make_cache(kGreedy.tokens + 5);
      for (std::size_t i = 0; i < tokens.size(); ++i) {
        const Tokens unread = i == 0 ? kGreedy.prompt : Tokens{tokens[i - 1]};
        const at::Tensor logits = model.next_logits(unread, cache);
        EXPECT_LE(distance(logits, expected[i]), 1e-11);
      }
    });
  }
}

TEST(Generation, ReadsTheCacheInPiecesOfAnySize) {
  const ModelRun run;
  run.on_every_rank([&](FrozenModel& model) {
    const Tokens tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
    nn::KeyValueCache whole = model.make_cache(9), parts = model.make_cache(9);
    const at::Tensor expected = model.next_logits(tokens, whole);
    model.next_logits(std::span(tokens).first(2), parts);
    model.next_logits(std::span(tokens).subspan(2, 4), parts);
    const at::Tensor found = model.next_logits(std::span(tokens).subspan(6), parts);
    EXPECT_EQ(parts.tokens, 9);
    EXPECT_LE(distance(found, expected), 1e-11);
  });
}

TEST(Generation, GivesTheSameTokensOnEveryMesh) {
  struct Mesh {
    int tp, gtp;
    bool is_scheduled = false;
  };
  for (const models::DecoderConfig& config : {dense_model(), sparse_model()})
    for (const quant::DType type : {quant::DType::fp32, quant::DType::fp64}) {
      const Tokens expected = ModelRun{.config = config, .type = type}.generate(kGreedy);
      EXPECT_EQ(expected.size(), 40u);
      // With tp 7 a rank has no head. If the sequence has one token, a rank also has no token.
      for (const Mesh& mesh : {Mesh{2, 1}, Mesh{1, 3}, Mesh{2, 2}, Mesh{7, 1}, Mesh{1, 2, true}, Mesh{2, 2, true}}) {
        const ModelRun run{
            .config = config, .tp = mesh.tp, .gtp = mesh.gtp, .type = type, .is_scheduled = mesh.is_scheduled};
        EXPECT_EQ(run.generate(kGreedy), expected)
            << name_of(type) << (config.experts ? ", experts" : "") << ", tp " << mesh.tp << ", gtp " << mesh.gtp;
      }
    }
}

TEST(Generation, DrawsTheSameTokensOnEveryMesh) {
  Generation drawn = kGreedy;
  drawn.sampling = {.temperature = 1.3, .top_p = 0.9, .seed = 8};
  const Tokens expected = ModelRun{}.generate(drawn);
  EXPECT_NE(expected, ModelRun{}.generate(kGreedy));
  EXPECT_EQ((ModelRun{.tp = 2, .gtp = 2}.generate(drawn)), expected);
  drawn.sampling.seed = 9;
  EXPECT_NE(ModelRun{}.generate(drawn), expected);
}

TEST(Generation, StopsAfterAStopTokenOnly) {
  const Tokens all = ModelRun{}.generate(kGreedy);
  Generation stopped = kGreedy;
  stopped.stop = {52, all[3]};
  const auto end = std::find(all.begin(), all.end(), all[3]) + 1;
  EXPECT_EQ((ModelRun{.tp = 2}.generate(stopped)), Tokens(all.begin(), end));
}

TEST(FrozenModel, HoldsTheWeightsAlone) {
  for (const models::DecoderConfig& config : {dense_model(), sparse_model()})
    ModelRun{.config = config, .tp = 2, .gtp = 2, .type = quant::DType::bf16}.on_every_rank([](FrozenModel& model) {
      for (schedule::ParameterId id = 0; id < model.runtime().parameters().size(); ++id) {
        const shard::ShardedParameter& parameter = model.runtime().parameter(id);
        EXPECT_EQ(parameter.master.size(), 0u) << parameter.spec.name;
        EXPECT_EQ(parameter.main_grad.size(), 0u) << parameter.spec.name;
        const bool is_router = parameter.spec.name.find("router") != std::string::npos;
        EXPECT_EQ(parameter.types.model, is_router ? quant::DType::fp32 : quant::DType::bf16) << parameter.spec.name;
      }
    });
}

TEST(FrozenModel, RefusesMoreTokensThanTheCacheHolds) {
  ModelRun{}.on_every_rank([](FrozenModel& model) {
    nn::KeyValueCache cache = model.make_cache(3);
    EXPECT_NO_THROW(model.next_logits(Tokens{1, 2}, cache));
    EXPECT_NO_THROW(model.next_logits(Tokens{1}, cache));
  });
  EXPECT_THROW(ModelRun{}.on_every_rank([](FrozenModel& model) {
    nn::KeyValueCache cache = model.make_cache(3);
    model.next_logits(Tokens{1, 2, 3, 4}, cache);
  }),
               Error);
  EXPECT_THROW(ModelRun{}.generate({.prompt = {}, .tokens = 2, .stop = {}, .sampling = {}}), Error);
}

TEST(Generation, OfWeightsThatAreNotFiniteIsAnError) {
  const ModelRun run{.tp = 2, .read = [](const checkpoint::LoadTensor& request) {
                       fill(request);
                       if (request.name == "norm.weight") static_cast<double*>(request.data)[0] = std::nan("");
                     }};
  EXPECT_THROW(run.generate(kGreedy), Error);
}

}  // namespace
}  // namespace tessera::serve
