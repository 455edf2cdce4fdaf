// The rule by which a router chooses experts. Does not include the tensor library, so that CUDA kernels can include
// this file.
#pragma once
#include <cstdint>

namespace tessera::ops {

// The largest number of experts of a layer on a GPU. The routers' kernels keep the values of a token's experts in
// shared memory, 32 experts for each thread of a warp. The kernels that move the rows of experts have the same limit.
inline constexpr std::int64_t kMaxDeviceExperts = 1023;

// The function that computes a token's scores from its logits. The sigmoid of an expert depends only on the logit of
// this expert, as in DeepSeek-V3.
enum class RouterScore : std::uint8_t { softmax, sigmoid };

struct RouterOptions {
  std::int64_t k = 1;  // number of experts that a token chooses; at most the number of experts in the chosen groups
  bool normalizes = false;  // whether each token's weights are divided by their sum (for sigmoid: by sum + 1e-20)
  RouterScore score = RouterScore::softmax;
  // The experts form `groups` groups of consecutive experts. All groups have the same size, and at least two experts if
  // there are several groups. The value of a group is the sum of its two largest ranks (route). A token chooses experts
  // only from the `chosen_groups` groups with the largest values.
  std::int64_t groups = 1, chosen_groups = 1;
  double scale = 1;  // factor of the weights, applied after the division

  // Returns the value that is added to the sum of a token's weights before the weights are divided by the sum.
  double least_sum() const { return score == RouterScore::sigmoid ? 1e-20 : 0; }
};

}  // namespace tessera::ops
