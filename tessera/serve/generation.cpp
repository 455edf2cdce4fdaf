#include "tessera/serve/generation.h"

#include <algorithm>
#include <span>

#include "tessera/base/error.h"

namespace tessera::serve {
namespace {

// Every rank has the same logits, so every rank finds values that are not finite. All ranks use the choice of rank 0,
// so that they always read the same next token.
std::int64_t next_token(FrozenModel& model, const at::Tensor& logits, const Sampling& sampling, std::int64_t position) {
  const at::Tensor wide = logits.to(at::kDouble).contiguous();
  const auto size = static_cast<std::size_t>(wide.numel());
  std::int64_t token = choose_token({wide.const_data_ptr<double>(), size}, sampling, position);
  model.parallel().world->broadcast(&token, 1, quant::DType::i64, 0).synchronize();
  return token;
}

}  // namespace

std::int64_t positions_of(const Generation& generation) {
  return static_cast<std::int64_t>(generation.prompt.size()) + generation.tokens - 1;
}

std::vector<std::int64_t> generate(FrozenModel& model, const Generation& generation) {
  TESSERA_CHECK(!generation.prompt.empty() && generation.tokens > 0, "{} tokens after a prompt of {}, expected both",
                generation.tokens, generation.prompt.size());
  nn::KeyValueCache cache = model.make_cache(positions_of(generation));
  std::vector<std::int64_t> result;
  std::vector<std::int64_t> unread = generation.prompt;
  for (std::int64_t i = 0; i < generation.tokens; ++i) {
    const at::Tensor logits = model.next_logits(unread, cache);
    const std::int64_t token = next_token(model, logits, generation.sampling, cache.tokens);
    result.push_back(token);
    if (std::ranges::find(generation.stop, token) != generation.stop.end()) break;
    unread = {token};
  }
  return result;
}

}  // namespace tessera::serve
