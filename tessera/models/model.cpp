#include "tessera/models/model.h"

#include <utility>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

[[noreturn]] void refuse(const char* what, const char* function) {
  throw Error("this model {}: it does not override models::Model::{}", what, function);
}
constexpr const char *kIsWhole = "runs only as a whole", *kOnlyTrains = "cannot generate";

}  // namespace

std::int64_t Model::blocks() const {
  refuse(kIsWhole, "blocks");
}
Flow Model::begin(const Batch&, const nn::PassState&) {
  refuse(kIsWhole, "begin");
}
Flow Model::run(Flow, layout::Range, const Batch&, const nn::PassState&, nn::KeyValueCache*) {
  refuse(kIsWhole, "run");
}
nn::Loss Model::loss(Flow, const Batch&, const nn::PassState&, double) {
  refuse(kIsWhole, "loss");
}
nn::KeyValueCache Model::make_cache(std::int64_t) {
  refuse(kOnlyTrains, "make_cache");
}
at::Tensor Model::logits(Flow, const Batch&, const nn::PassState&) {
  refuse(kOnlyTrains, "logits");
}

nn::Loss Model::forward(const Batch& batch, const nn::PassState& pass, double scale) {
  return loss(run(begin(batch, pass), {0, blocks()}, batch, pass), batch, pass, scale);
}

at::Tensor Model::next_logits(const Batch& batch, const nn::PassState& pass, nn::KeyValueCache& cache) {
  const std::int64_t tokens = batch.layout.seq_len;
  TESSERA_CHECK(batch.layout.batch == 1 && tokens > 0, "{} sequences of {} tokens, expected one that is not empty",
                batch.layout.batch, tokens);
  TESSERA_CHECK(cache.tokens + tokens <= cache.capacity, "a cache of {} tokens has no place for {} after {}",
                cache.capacity, tokens, cache.tokens);
  Flow flow = run(begin(batch, pass), {0, blocks()}, batch, pass, &cache);
  cache.tokens += tokens;
  return logits(std::move(flow), batch, pass);
}

}  // namespace tessera::models
