// What a host and its device did, kernel by kernel, by torch's profiler.
#pragma once
#include <filesystem>
#include <functional>

namespace tessera::bench {

// Does the work and writes what it ran to `file`, as Chrome trace JSON, which Perfetto opens. The work should wait for
// its device at its end. Slower than without, by the events. Errors: a file that cannot be written (Error).
void profile(const std::filesystem::path& file, const std::function<void()>& work);

}  // namespace tessera::bench
