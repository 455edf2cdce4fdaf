// NCCL's functions, from the library that this process loads at run time.
#pragma once
#include <nccl.h>

#include <memory>
#include <string>

namespace tessera::comm {

struct NcclLibrary {
  std::string path;
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
};

// Returns the functions of the NCCL library. Uses the library that the process has already loaded (with libtorch). If
// no library is loaded, loads `path` if it is not empty, otherwise the library that the build names, or else the
// system's library. The library stays loaded. Throws InputError if no library is found, or if its major and minor
// version differ from the header's.
std::shared_ptr<const NcclLibrary> load_nccl(const std::string& path);

}  // namespace tessera::comm
