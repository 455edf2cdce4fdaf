// stranger SECONDS PORT...: disturbs ports of this host (stranger.h). Prints the number of accepted connections. The
// exit code is 1 if no connection was accepted.
#include "tests/rendezvous/stranger/stranger.h"

#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: stranger SECONDS PORT...\n");
    return 2;
  }
  std::vector<int> ports;
  for (int i = 2; i < argc; ++i) ports.push_back(std::atoi(argv[i]));
  const std::int64_t accepted =
      tessera::rendezvous::Stranger(ports).run(std::chrono::milliseconds(std::atoi(argv[1]) * 1000));
  std::printf("%lld connections\n", static_cast<long long>(accepted));
  return accepted > 0 ? 0 : 1;
}
