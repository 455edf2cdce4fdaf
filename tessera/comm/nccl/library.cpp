#include "tessera/comm/nccl/library.h"

#include <dlfcn.h>

#include <vector>

#include "tessera/base/error.h"

namespace tessera::comm {
namespace {

constexpr const char* kName = "libnccl.so.2";

void* open_nccl(const std::string& path, std::string& found) {
  if (void* held = dlopen(kName, RTLD_NOW | RTLD_NOLOAD)) {
    found = kName;
    return held;
  }
  std::vector<std::string> paths =
      path.empty() ? std::vector<std::string>{TESSERA_NCCL_LIBRARY, kName} : std::vector<std::string>{path};
  std::string problems;
  for (const std::string& one : paths) {
    if (void* opened = dlopen(one.c_str(), RTLD_NOW | RTLD_GLOBAL)) {
      found = one;
      return opened;
    }
    const char* problem = dlerror();
    problems += (problems.empty() ? "" : "; ") + std::string(problem == nullptr ? one : problem);
  }
  throw InputError("NCCL: expected {}, but no library could be loaded: {}", kName, problems);
}

template <typename Function>
void bind(void* handle, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(handle, name));
  if (function == nullptr) throw InputError("NCCL: the library has no {}", name);
}

}  // namespace

std::shared_ptr<const NcclLibrary> load_nccl(const std::string& path) {
  auto library = std::make_shared<NcclLibrary>();
  void* handle = open_nccl(path, library->path);
  bind(handle, "ncclGetVersion", library->get_version);
  int version = 0;
  if (library->get_version(&version) != ncclSuccess || version / 100 != NCCL_VERSION_CODE / 100)
    throw InputError("NCCL: expected version {}.{}, which this program was built for, got {}.{} in {}", NCCL_MAJOR,
                     NCCL_MINOR, version / 10000, version / 100 % 100, library->path);
  bind(handle, "ncclGetUniqueId", library->get_unique_id);
  bind(handle, "ncclCommInitRankConfig", library->comm_init_rank_config);
  bind(handle, "ncclCommFinalize", library->comm_finalize);
  bind(handle, "ncclCommDestroy", library->comm_destroy);
  bind(handle, "ncclCommAbort", library->comm_abort);
  bind(handle, "ncclCommGetAsyncError", library->comm_get_async_error);
  bind(handle, "ncclGetErrorString", library->get_error_string);
  bind(handle, "ncclGetLastError", library->get_last_error);
  bind(handle, "ncclGroupStart", library->group_start);
  bind(handle, "ncclGroupEnd", library->group_end);
  bind(handle, "ncclSend", library->send);
  bind(handle, "ncclRecv", library->recv);
  bind(handle, "ncclAllGather", library->all_gather);
  bind(handle, "ncclAllReduce", library->all_reduce);
  bind(handle, "ncclBroadcast", library->broadcast);
  return library;
}

}  // namespace tessera::comm
