// Profiles of the kernels, copies and fills of a device.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera::bench {

// A kernel, copy or fill on a stream.
struct DeviceSpan {
  std::string name, kind;
  std::uint32_t stream = 0;
  std::uint64_t begin_ns = 0, end_ns = 0, bytes = 0;
};

// Returns Chrome trace JSON with one row per stream, in stream order. Time starts at the first span. Spans of one
// stream may overlap, for example in branches of a graph. An overlapping span is in an additional row of its stream.
// Spans of length zero are omitted, because CUPTI reports begin 0 and end 0 for an activity without times.
nlohmann::ordered_json trace_of(std::vector<DeviceSpan> spans);

// Runs the work, and writes all kernels, copies and fills of this process's devices to `file`. The file has the format
// of trace_of, which Perfetto opens. The work must wait for its device before it returns. Throws Error without CUPTI,
// or if the file cannot be written. Only a build with CUDA defines this function.
void profile(const std::filesystem::path& file, const std::function<void()>& work);

}  // namespace tessera::bench
