// What a device did, kernel by kernel.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::bench {

// A kernel, copy or fill of a stream.
struct DeviceSpan {
  std::string name, kind;
  std::uint32_t stream = 0;
  std::uint64_t begin_ns = 0, end_ns = 0, bytes = 0;
};

// Chrome trace JSON with one row a stream, in their order, from the first span on. What begins before the span before
// it in its stream has ended, as branches of a graph may, goes to a further row of that stream.
// Nothing for a span without length: CUPTI reports 0 and 0 where it has no times.
nlohmann::ordered_json trace_of(std::vector<DeviceSpan> spans);

// Does the work and writes every kernel, copy and fill of this process's devices to `file`, by trace_of, which Perfetto
// opens. The work waits for its device at its end. Errors: no CUDA, no CUPTI, a file that cannot be written (Error).
void profile(const std::filesystem::path& file, const std::function<void()>& work);

}  // namespace tessera::bench
