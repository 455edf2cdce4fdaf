// A model whose blocks run in several ranges.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "tessera/models/model.h"

namespace tessera::models::testing {

class DividedModel final : public Model {
 public:
  // `ends`: the end of each range but the last.
  DividedModel(std::unique_ptr<Model> model, std::vector<std::int64_t> ends)
      : model_(std::move(model)), ends_(std::move(ends)) {}

  nn::Loss forward(const Batch& batch, const nn::PassState& pass, double scale) override {
    Flow flow = model_->begin(batch, pass);
    std::int64_t begin = 0;
    for (const std::int64_t end : ends_)
      flow = model_->run(std::move(flow), {std::exchange(begin, end), end}, batch, pass);
    flow = model_->run(std::move(flow), {begin, model_->blocks()}, batch, pass);
    return model_->loss(std::move(flow), batch, pass, scale);
  }
  RouterBiases router_biases() const override { return model_->router_biases(); }

 private:
  std::unique_ptr<Model> model_;
  std::vector<std::int64_t> ends_;
};

}  // namespace tessera::models::testing
