// The benchmark `links`: transfers between GPUs, by copies into each other's memory and by NCCL, alone and concurrent
// with matrix products.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tessera/comm/world.h"

namespace tessera::bench {

struct LinkBench {
  std::vector<std::int64_t> bytes{2 << 20, 8 << 20, 32 << 20, 64 << 20};  // from a rank to each peer
  int rounds = 20;
  std::int64_t rows = 8192, columns = 14336, depth = 4096;  // of the products, bf16
};

struct LinkRow {
  std::string transport;       // "push" or "nccl"
  std::int64_t bytes = 0;      // per peer
  double alone = 0;            // received bytes per second and rank, all-gathers one after another
  double beside = 0;           // the rate while products run all the time
  double products_slower = 0;  // time of products while all-gathers run all the time, divided by their time alone
};

// Collective over a world of at least two GPUs. Returns the slowest rank's figures, the same on every rank. Throws
// InputError without GPUs.
std::vector<LinkRow> link_rows(comm::World& world, const LinkBench& bench);

std::string link_text(const std::vector<LinkRow>& rows);
nlohmann::ordered_json link_json(const std::vector<LinkRow>& rows);

}  // namespace tessera::bench
