// Gives access to a buffer of a parameter from the host, for reading and writing files.
#pragma once
#include <cstddef>

#include "tessera/base/memory/buffer.h"
#include "tessera/shard/parallel_groups.h"

namespace tessera::train {

// Refers to the buffer itself on a CPU, and owns a host copy of the buffer on a GPU.
class HostView {
 public:
  // On a GPU, waits for compute and copies the buffer.
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
