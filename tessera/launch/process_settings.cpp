#include "tessera/launch/process_settings.h"

#include <ATen/Parallel.h>

#include "tessera/ops/attention/attention.h"

namespace tessera::launch {

void set_up_process(std::int64_t threads, bool deterministic) {
  at::set_num_threads(static_cast<int>(threads));
  ops::set_deterministic(deterministic);
}

void set_up_rank_thread() {
  at::init_num_threads();
}

}  // namespace tessera::launch
