// A value together with the text from which it was read. config.json stores the text.
#pragma once
#include <string>

namespace tessera::settings {

template <typename T>
struct Written {
  T value{};
  std::string text = {};

  bool empty() const { return text.empty(); }
};

}  // namespace tessera::settings
