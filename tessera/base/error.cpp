#include "tessera/base/error.h"

#include <string_view>

namespace tessera::base {

void fail_check(const char* file, int line, const char* expression, const std::string& message) {
  std::string_view path(file);
  if (auto at = path.rfind("tessera/"); at != std::string_view::npos) path.remove_prefix(at);
  throw Error("{} ({}:{}: {})", message, path, line, expression);
}

}  // namespace tessera::base
