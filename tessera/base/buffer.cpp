#include "tessera/base/buffer.h"

#include <cstring>
#include <new>

#include "tessera/base/error.h"

namespace tessera::base {

Buffer::Buffer(std::size_t bytes) : size_(bytes) {
  void* pointer = ::operator new(align_up(bytes == 0 ? 1 : bytes), std::align_val_t(kAlignment), std::nothrow);
  if (pointer == nullptr) throw Error("out of memory: {} bytes of host memory asked for", bytes);
  data_.reset(static_cast<std::byte*>(pointer));
}

void Buffer::Free::operator()(std::byte* pointer) const {
  ::operator delete(pointer, std::align_val_t(kAlignment));
}

void Buffer::fill_zero() {
  std::memset(data_.get(), 0, size_);
}

}  // namespace tessera::base
