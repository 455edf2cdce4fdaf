#include "tessera/rendezvous/host.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "tessera/rendezvous/run_identity.h"

namespace tessera::rendezvous {
namespace {

// Returns the text, or a random text if it is empty.
std::string or_unique(const std::string& text) {
  return text.empty() ? draw_identity() : text;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

std::string host_identity() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  return fmt::format("{} {}", host_name(), or_unique(boot));
}

std::string network_identity() {
  std::error_code error;
  const std::string network = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  return fmt::format("{} {}", host_identity(), or_unique(network));
}

}  // namespace tessera::rendezvous
