#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/bench/profile.h"

namespace tessera::bench {
namespace {

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMCPY2, CUPTI_ACTIVITY_KIND_MEMSET};

// The CUPTI library that libtorch loads.
struct Library {
  template <typename F>
  static F* find(const char* name) {
    static void* const library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
    auto* function = library == nullptr ? nullptr : reinterpret_cast<F*>(dlsym(library, name));
    if (function == nullptr) throw Error("--profile: cannot find {} in libcupti.so.13", name);
    return function;
  }
  decltype(cuptiActivityRegisterCallbacks)* register_callbacks =
      find<decltype(cuptiActivityRegisterCallbacks)>("cuptiActivityRegisterCallbacks");
  decltype(cuptiActivityEnable)* enable = find<decltype(cuptiActivityEnable)>("cuptiActivityEnable");
  decltype(cuptiActivityDisable)* disable = find<decltype(cuptiActivityDisable)>("cuptiActivityDisable");
  decltype(cuptiActivityFlushAll)* flush = find<decltype(cuptiActivityFlushAll)>("cuptiActivityFlushAll");
  decltype(cuptiActivityGetNextRecord)* next = find<decltype(cuptiActivityGetNextRecord)>("cuptiActivityGetNextRecord");
};

// The CUPTI callbacks take no user argument, so they write to this object while it exists.
struct Recorder;
Recorder* recorder = nullptr;
struct Recorder {
  Library cupti;
  std::mutex mutex;
  std::vector<DeviceSpan> spans;

  Recorder() { recorder = this; }
  ~Recorder() {
    for (const CUpti_ActivityKind kind : kKinds) cupti.disable(kind);
    recorder = nullptr;
  }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
};

void check(CUptiResult result, const char* what) {
  if (result != CUPTI_SUCCESS) throw Error("--profile: {} failed with {}", what, static_cast<int>(result));
}

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 ? text.get() : name;
}

DeviceSpan span_of(const CUpti_Activity& record) {
  const auto copied = [](const auto& copy, std::string name) {
    return DeviceSpan{std::move(name), "copy", copy.streamId, copy.start, copy.end, copy.bytes};
  };
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
      return {demangled(kernel.name), "kernel", kernel.streamId, kernel.start, kernel.end, 0};
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY:
      return copied(reinterpret_cast<const CUpti_ActivityMemcpy6&>(record), "copy");
    case CUPTI_ACTIVITY_KIND_MEMCPY2:
      return copied(reinterpret_cast<const CUpti_ActivityMemcpyPtoP4&>(record), "copy to a peer");
    case CUPTI_ACTIVITY_KIND_MEMSET:
      return copied(reinterpret_cast<const CUpti_ActivityMemset4&>(record), "fill");
    default:
      return {};
  }
}

void give_buffer(std::uint8_t** buffer, std::size_t* size, std::size_t* max_records) {
  constexpr std::size_t buffer_bytes = std::size_t{1} << 20;
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, buffer_bytes));
  *size = *buffer == nullptr ? 0 : buffer_bytes;
  *max_records = 0;
}

void take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid) {
  const std::unique_ptr<std::uint8_t, decltype(&std::free)> owned(buffer, &std::free);
  if (recorder == nullptr) return;
  std::lock_guard lock(recorder->mutex);
  for (CUpti_Activity* record = nullptr; recorder->cupti.next(buffer, valid, &record) == CUPTI_SUCCESS;)
    recorder->spans.push_back(span_of(*record));
}

std::vector<DeviceSpan> record(const std::function<void()>& work) {
  Recorder own;
  check(own.cupti.register_callbacks(give_buffer, take_buffer), "cuptiActivityRegisterCallbacks");
  for (const CUpti_ActivityKind kind : kKinds) check(own.cupti.enable(kind), "cuptiActivityEnable");
  work();
  for (const CUpti_ActivityKind kind : kKinds) check(own.cupti.disable(kind), "cuptiActivityDisable");
  check(own.cupti.flush(0), "cuptiActivityFlushAll");
  return std::move(own.spans);
}

}  // namespace

void profile(const std::filesystem::path& file, const std::function<void()>& work) {
  const nlohmann::ordered_json trace = trace_of(record(work));
  std::ofstream out(file);
  out << trace.dump() << '\n';
  if (!out.flush()) throw Error("--profile: cannot write {}", file.string());
}

}  // namespace tessera::bench
