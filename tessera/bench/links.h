// The benchmark `links`: the rate of transfers between GPUs. The transfers are copies into the memory of other GPUs, or
// NCCL calls. The transfers run alone, and then concurrently with matrix products.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/comm/world.h"

namespace tessera::bench {

struct LinkBench {
  std::vector<std::int64_t> bytes{2 << 20, 8 << 20, 32 << 20, 64 << 20};  // bytes from a rank to each peer
  int rounds = 20;
  std::int64_t rows = 8192, columns = 14336, depth = 4096;  // sizes of the bf16 products
};

struct LinkRow {
  std::string transport;       // "push" or "nccl"
  std::int64_t bytes = 0;      // bytes from a rank to each peer
  double alone = 0;            // bytes per second that a rank receives if only all-gathers run
  double beside = 0;           // bytes per second that a rank receives while products run
  double products_slower = 0;  // time of products while all-gathers run, divided by the time of products alone
};

// Collective over a world of at least two GPUs. Every rank returns the figures of the slowest rank. Throws InputError
// without GPUs.
std::vector<LinkRow> link_rows(comm::World& world, const LinkBench& bench);

std::string link_text(const std::vector<LinkRow>& rows);
nlohmann::ordered_json link_json(const std::vector<LinkRow>& rows);

}  // namespace tessera::bench
