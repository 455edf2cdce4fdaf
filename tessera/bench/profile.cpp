#include "tessera/bench/profile.h"

#include <torch/csrc/autograd/profiler_kineto.h>

#include "tessera/base/error.h"

namespace tessera::bench {

void profile(const std::filesystem::path& file, const std::function<void()>& work) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  using torch::profiler::impl::ProfilerConfig;
  using torch::profiler::impl::ProfilerState;
  const std::set<ActivityType> activities{ActivityType::CPU, ActivityType::CUDA};
  const ProfilerConfig config(ProfilerState::KINETO);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  work();
  profiler::disableProfiler()->save(file.string());
  if (!exists(file)) throw Error("--profile: {} was not written", file.string());
}

}  // namespace tessera::bench
