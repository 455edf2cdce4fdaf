// A buffer of a parameter as host memory, for reading and writing files.
#pragma once
#include <cstddef>

#include "tessera/base/buffer.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::train {

// The memory itself on a CPU, a host copy on a GPU.
class HostView {
 public:
  // Waits for compute before it copies.
  HostView(const void* data, std::size_t bytes, shard::ParallelGroups& parallel) : data_(const_cast<void*>(data)) {
    if (!parallel.is_asynchronous()) return;
    copy_ = base::Buffer(bytes);
    parallel.compute->synchronize();
    base::copy_bytes(copy_.data(), data_, bytes);
    is_copy_ = true;
  }
  void* data() { return is_copy_ ? copy_.data() : data_; }
  void write_back() const {
    if (is_copy_) base::copy_bytes(data_, copy_.data(), copy_.size());
  }

 private:
  void* data_;
  base::Buffer copy_;
  bool is_copy_ = false;
};

}  // namespace tessera::train
