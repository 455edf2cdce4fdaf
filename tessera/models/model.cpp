#include "tessera/models/model.h"

#include "tessera/base/error.h"

namespace tessera::models {

nn::KeyValueCache Model::make_cache(std::int64_t) {
  throw Error("this model cannot generate: it does not override models::Model::make_cache");
}

at::Tensor Model::next_logits(const Batch&, nn::KeyValueCache&) {
  throw Error("this model cannot generate: it does not override models::Model::next_logits");
}

}  // namespace tessera::models
