// The benchmark `links`: what travels between GPUs, by copies into each other's memory and by NCCL, alone and beside
// matrix products.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/comm/world.h"

namespace tessera::bench {

struct LinkBench {
  std::vector<std::int64_t> bytes{2 << 20, 8 << 20, 32 << 20, 64 << 20};  // from a rank to each of its peers
  int rounds = 20;
  std::int64_t rows = 8192, columns = 14336, depth = 4096;  // of the products, bf16
};

struct LinkRow {
  std::string transport;       // "push" or "nccl"
  std::int64_t bytes = 0;      // a peer
  double alone = 0;            // bytes a second that a rank receives, of all-gathers one behind the other
  double beside = 0;           // the same while products run all the time
  double products_slower = 0;  // time of the products while all-gathers run all the time, over their time alone
};

// Collective over a world of GPUs, at least two; the slowest rank's figures, the same on every rank. Errors: no GPUs
// (InputError).
std::vector<LinkRow> link_rows(comm::World& world, const LinkBench& bench);

std::string link_text(const std::vector<LinkRow>& rows);
nlohmann::ordered_json link_json(const std::vector<LinkRow>& rows);

}  // namespace tessera::bench
