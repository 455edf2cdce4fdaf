// The version of the source code.
#pragma once
#include <string_view>

namespace tessera::base {
inline constexpr std::string_view kVersion = "0.1.0";
}
