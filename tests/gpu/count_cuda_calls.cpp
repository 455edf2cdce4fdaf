// A library for LD_PRELOAD. It counts a program's CUDA calls that allocate or free memory, or that make the host wait.
// Each process writes its counts to TESSERA_COUNTS.PID, one line for each function: NAME COUNT.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr const char* kNames[] = {
    "cudaMalloc",   "cudaFree",   "cudaMallocAsync",       "cudaFreeAsync",        "cudaHostAlloc",
    "cudaFreeHost", "cudaMemcpy", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize"};
constexpr std::size_t kCalls = std::size(kNames), kLine = 64;

// The counts, in a mapped file. They are therefore also written if a process ends without cleaning up.
class Counts {
 public:
  Counts() {
    const char* prefix = std::getenv("TESSERA_COUNTS");
    if (prefix == nullptr) return;
    const std::string path = std::string(prefix) + "." + std::to_string(getpid());
    const int file = open(path.c_str(), O_CREAT | O_TRUNC | O_RDWR, 0644);
    if (file < 0 || ftruncate(file, kCalls * kLine) != 0) std::abort();
    void* memory = mmap(nullptr, kCalls * kLine, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED) std::abort();
    text_ = static_cast<char*>(memory);
    for (std::size_t call = 0; call < kCalls; ++call) write(call, 0);
  }
  void add(std::size_t call) {
    const long count = ++counts_[call];
    if (text_ != nullptr) write(call, count);
  }

 private:
  void write(std::size_t call, long count) {
    char line[kLine + 1];
    std::snprintf(line, sizeof line, "%-40s %22ld\n", kNames[call], count);
    for (std::size_t i = 0; i < kLine; ++i) text_[call * kLine + i] = line[i];
  }
  char* text_ = nullptr;
  std::atomic<long> counts_[kCalls] = {};
};

Counts& counts() {
  static Counts* const counts = new Counts;  // never destroyed, because calls may come during exit
  return *counts;
}

template <std::size_t kCall, typename... Arguments>
cudaError_t counted(Arguments... arguments) {
  using Function = cudaError_t(Arguments...);
  static auto* const real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, kNames[kCall]));
  counts().add(kCall);
  return real(arguments...);
}

}  // namespace

extern "C" {
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  return counted<0>(memory, bytes);
}
cudaError_t cudaFree(void* memory) {
  return counted<1>(memory);
}
cudaError_t cudaMallocAsync(void** memory, std::size_t bytes, cudaStream_t stream) {
  return counted<2>(memory, bytes, stream);
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  return counted<3>(memory, stream);
}
cudaError_t cudaHostAlloc(void** memory, std::size_t bytes, unsigned flags) {
  return counted<4>(memory, bytes, flags);
}
cudaError_t cudaFreeHost(void* memory) {
  return counted<5>(memory);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return counted<6>(to, from, bytes, kind);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return counted<7>(stream);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return counted<8>(event);
}
cudaError_t cudaDeviceSynchronize() {
  return counted<9>();
}
}
