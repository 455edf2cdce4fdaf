// Measures collectives and memory copies in the same run. Prints each rank's buffer bytes per second, and the ratio to
// concurrent memcpy of the same number of bytes by the same number of threads (or processes).
//
//   bench_collectives [RANKS]                    ranks are threads (default 2)
//   mpirun -n RANKS bench_collectives mpi        ranks are processes
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/memory/buffer.h"
#include "tessera/comm/local/world.h"
#include "tessera/comm/mpi/world.h"

namespace {

using namespace tessera;
using comm::Communicator;

constexpr std::int64_t kMegabyte = 1 << 20;

// Returns the seconds of one call of `work`. All ranks start at the same time.
double seconds(Communicator& group, int repeats, const std::function<void()>& work) {
  group.barrier().synchronize();
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / repeats;
}

struct Row {
  const char* name;
  quant::DType type;
  std::function<void()> work;
  double best = 1e9;  // seconds of the fastest round
};

void measure(Communicator& group, std::int64_t bytes) {
  const int ranks = group.size();
  base::Buffer source(static_cast<std::size_t>(bytes)), target(static_cast<std::size_t>(bytes));
  source.fill_zero();
  target.fill_zero();
  const auto counts = [&](quant::DType type) {
    return comm::equal_counts(ranks, bytes / ranks / static_cast<std::int64_t>(quant::size_of(type)));
  };
  const auto elements = [&](quant::DType type) { return bytes / static_cast<std::int64_t>(quant::size_of(type)); };
  using enum quant::DType;
  const auto fp32_counts = counts(fp32), bf16_counts = counts(bf16);
  std::vector<Row> rows{
      {"memcpy", fp32, [&] { std::memcpy(target.data(), source.data(), source.size()); }},
      {"all_gather", fp32, [&] { group.all_gather(source.data(), target.data(), fp32_counts, fp32).synchronize(); }},
      {"all_to_all", fp32,
       [&] { group.all_to_all(source.data(), fp32_counts, target.data(), fp32_counts, fp32).synchronize(); }},
      {"reduce_scatter", fp32,
       [&] { group.reduce_scatter(source.data(), target.data(), fp32_counts, fp32).synchronize(); }},
      {"reduce_scatter", bf16,
       [&] { group.reduce_scatter(source.data(), target.data(), bf16_counts, bf16).synchronize(); }},
      {"all_reduce", fp32, [&] { group.all_reduce(target.data(), elements(fp32), fp32).synchronize(); }},
      {"all_reduce", bf16, [&] { group.all_reduce(target.data(), elements(bf16), bf16).synchronize(); }},
  };
  const int repeats = static_cast<int>(std::clamp<std::int64_t>(4 * kMegabyte / bytes, 1, 100));
  // Measures all rows several times, and prints the best round of each row. A busy machine slows all rows of a round
  // equally.
  constexpr int rounds = 10;
  for (int round = 0; round < rounds; ++round)
    for (Row& row : rows) row.best = std::min(row.best, seconds(group, repeats, row.work));
  if (group.rank() != 0) return;
  for (const Row& row : rows)
    std::printf("%8.3f MB  %-15s %-5s %9.1f us  %7.2f GB/s  %5.2f of memcpy\n", static_cast<double>(bytes) / kMegabyte,
                row.name, std::string(name_of(row.type)).c_str(), row.best * 1e6,
                static_cast<double>(bytes) / row.best * 1e-9, rows.front().best / row.best);
}

void run(comm::World& world) {
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  const auto group = world.make_group("bench", {all});
  if (world.rank() == 0)
    std::printf("collectives: %s backend, %d ranks; bytes are one rank's whole buffer\n",
                std::string(world.backend()).c_str(), world.size());
  for (const std::int64_t bytes : {kMegabyte / 64, kMegabyte, 8 * kMegabyte, 64 * kMegabyte}) measure(*group, bytes);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string argument = argc > 1 ? argv[1] : "2";
  try {
    if (argument == "mpi") {
      run(*comm::make_mpi_world({}));
    } else {
      int ranks = 0;
      const auto [end, error] = std::from_chars(argument.data(), argument.data() + argument.size(), ranks);
      if (error != std::errc() || end != argument.data() + argument.size())
        throw InputError("RANKS: expected a number of ranks or mpi, got '{}'", argument);
      comm::run_local(ranks, {}, run);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_collectives: %s\n", error.what());
    if (argument == "mpi") comm::abort_mpi(1);
    return 1;
  }
}
