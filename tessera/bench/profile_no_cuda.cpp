#include "tessera/base/error.h"
#include "tessera/bench/profile.h"

namespace tessera::bench {

void profile(const std::filesystem::path&, const std::function<void()>&) {
  throw InputError("--profile: this build has no CUDA");
}

}  // namespace tessera::bench
