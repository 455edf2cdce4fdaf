// Decides when a long search prints a line about its progress.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

namespace tessera::run {

class ProgressLines {
 public:
  // Returns a line such as "planned 120 of 1034 meshes in 10 s". The first line is due after 2 seconds, and each later
  // line 10 seconds after the line before. Otherwise returns nullopt. `seconds`: time since the start of the search.
  std::optional<std::string> next(std::size_t planned, std::size_t all, double seconds);

 private:
  double due_ = 2;  // seconds since the start
};

}  // namespace tessera::run
