// Reads the sockets on which a process listens.
#pragma once
#include <dirent.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace tessera::rendezvous {

struct Listening {
  bool is_loopback = false;
  int port = 0;
  bool operator==(const Listening&) const = default;
};

// Returns the targets of the links in /proc/PROCESS/fd, e.g. "socket:[1234]".
inline std::multiset<std::string> open_files(pid_t process = getpid()) {
  std::multiset<std::string> files;
  const std::string folder = fmt::format("/proc/{}/fd", process);
  DIR* const entries = opendir(folder.c_str());
  while (const dirent* entry = entries != nullptr ? readdir(entries) : nullptr) {
    std::array<char, 256> target{};
    if (readlink(fmt::format("{}/{}", folder, entry->d_name).c_str(), target.data(), target.size() - 1) > 0)
      files.insert(target.data());
  }
  if (entries != nullptr) closedir(entries);
  return files;
}

// Returns the listening TCP sockets of a process, from /proc/PROCESS/net and /proc/PROCESS/fd.
inline std::vector<Listening> listening_sockets(pid_t process = getpid()) {
  const std::multiset<std::string> files = open_files(process);
  std::vector<Listening> found;
  for (const char* table : {"tcp", "tcp6"}) {
    std::ifstream lines(fmt::format("/proc/{}/net/{}", process, table));
    std::string line, word;
    std::getline(lines, line);
    while (std::getline(lines, line)) {
      std::istringstream stream(line);
      std::vector<std::string> words;
      while (stream >> word) words.push_back(word);
      constexpr std::size_t kInode = 9;
      if (words.size() <= kInode || words[3] != "0A" || !files.contains("socket:[" + words[kInode] + "]")) continue;
      const std::size_t colon = words[1].find(':');
      found.push_back({.is_loopback = words[1].substr(0, colon) == "0100007F",
                       .port = std::stoi(words[1].substr(colon + 1), nullptr, 16)});
    }
  }
  return found;
}

}  // namespace tessera::rendezvous
