// What a device did, kernel by kernel.
#pragma once
#include <filesystem>
#include <functional>

namespace tessera::bench {

// Does the work and writes every kernel, copy and fill of this process's devices to `file`, as Chrome trace JSON with
// one row a stream, which Perfetto opens. The work waits for its device at its end. Errors: no CUDA, no CUPTI, a file
// that cannot be written (Error).
void profile(const std::filesystem::path& file, const std::function<void()>& work);

}  // namespace tessera::bench
