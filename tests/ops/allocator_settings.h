#pragma once
#include <c10/core/AllocatorConfig.h>

#include <string>

namespace tessera::ops::test {

// Sets options of libtorch's GPU memory allocator. At the end of the scope, restores the previous options.
class AllocatorSettings {
 public:
  explicit AllocatorSettings(const std::string& settings) { c10::CachingAllocator::setAllocatorSettings(settings); }
  ~AllocatorSettings() {
    const bool says = before_.find("expandable_segments") != std::string::npos;
    c10::CachingAllocator::setAllocatorSettings(says ? before_ : before_.empty() ? kDefault : before_ + "," + kDefault);
  }
  AllocatorSettings(const AllocatorSettings&) = delete;
  AllocatorSettings& operator=(const AllocatorSettings&) = delete;

 private:
  static inline const std::string kDefault = "expandable_segments:False";
  const std::string before_ = c10::CachingAllocator::getAllocatorSettings();
};

}  // namespace tessera::ops::test
