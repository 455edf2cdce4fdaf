// Decides when a long plan prints a line about its progress.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

namespace tessera::plan {

class ProgressLines {
 public:
  // `things`: what is planned, in the plural.
  explicit ProgressLines(std::string things) : things_(std::move(things)) {}
  // Returns a line such as "planned 120 of 1034 meshes in 10 s". The first line is due after 2 seconds, and each later
  // line 10 seconds after the line before. Otherwise returns nullopt. `seconds`: time since the start.
  std::optional<std::string> next(std::size_t planned, std::size_t all, double seconds);

 private:
  std::string things_;
  double due_ = 2;  // seconds since the start
};

}  // namespace tessera::plan
