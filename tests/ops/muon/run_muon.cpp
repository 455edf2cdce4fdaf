// run_muon TYPE ROWS COLS UPDATES MOMENTUM NESTEROV SCALE LR DECAY updates one matrix by Muon. TYPE is bf16, fp32 or
// fp64, NESTEROV on or off, SCALE moonshot or original. Reads the matrix and one gradient for each update from stdin.
// Writes X and the matrix after each update. All of them are fp64. The master, the gradient and the momentum of bf16
// are fp32. tests/tools/test_muon.py runs it.
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/ops/optimizer/matrices/muon.h"
#include "tessera/quant/elementwise.h"

namespace {

using namespace tessera;
using quant::DType;

struct Matrix {
  DType type;
  std::int64_t count;
  std::vector<std::byte> bytes;

  Matrix(DType element, std::int64_t elements)
      : type(element), count(elements), bytes(static_cast<std::size_t>(elements) * quant::size_of(element)) {}
  bool read() {
    std::vector<double> values(static_cast<std::size_t>(count));
    const bool is_read = std::fread(values.data(), sizeof(double), values.size(), stdin) == values.size();
    quant::cast(values.data(), DType::fp64, bytes.data(), type, count);
    return is_read;
  }
  void write() const {
    std::vector<double> values(static_cast<std::size_t>(count));
    quant::cast(bytes.data(), type, values.data(), DType::fp64, count);
    std::fwrite(values.data(), sizeof(double), values.size(), stdout);
  }
};

int run(DType type, std::int64_t rows, std::int64_t cols, int updates, double lr, const ops::Muon& options) {
  const DType accumulator = type == DType::fp64 ? DType::fp64 : DType::fp32;
  const std::int64_t count = rows * cols;
  Matrix master(accumulator, count), gradient(accumulator, count), momentum(accumulator, count), x(type, count);
  const auto rule = ops::make_matrix_rule(options);
  std::vector<std::byte> scalars(rule->scalar_bytes());
  const ops::Clip clip;
  if (!master.read()) return 2;
  for (int update = 1; update <= updates; ++update) {
    if (!gradient.read()) return 2;
    rule->scalars({.lr = lr}, update, scalars.data());
    const ops::DirectionShard direction{.gradient = gradient.bytes.data(),
                                        .gradient_type = accumulator,
                                        .master_type = accumulator,
                                        .plane = momentum.bytes.data(),
                                        .direction = x.bytes.data(),
                                        .direction_type = type,
                                        .count = count};
    rule->directions({&direction, 1}, scalars.data(), &clip, nullptr);
    rule->iterate({.u = x.bytes.data(), .x = x.bytes.data(), .rows = rows, .cols = cols, .type = type}, nullptr);
    const ops::UpdateShard shard{.master = master.bytes.data(),
                                 .master_type = accumulator,
                                 .gradient = x.bytes.data(),
                                 .gradient_type = type,
                                 .count = count,
                                 .factor = rule->factor(rows, cols)};
    rule->update({&shard, 1}, scalars.data(), &clip, nullptr);
    x.write();
    master.write();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fputs("expected: run_muon LR DECAY TYPE,ROWS,COLS,UPDATES,NESTEROV,SCALE...\n", stderr);
    return 2;
  }
  for (int i = 3; i < argc; ++i) {
    std::istringstream words(argv[i]);
    std::string type, rows, cols, updates, nesterov, scale;
    for (std::string* word : {&type, &rows, &cols, &updates, &nesterov, &scale}) std::getline(words, *word, ',');
    const ops::Muon options{.weight_decay = std::atof(argv[2]),
                            .nesterov = nesterov == "on",
                            .scale = scale == "original" ? ops::MuonScale::original : ops::MuonScale::moonshot};
    const DType of_case = type == "bf16" ? DType::bf16 : type == "fp32" ? DType::fp32 : DType::fp64;
    if (const int failed =
            run(of_case, std::stoll(rows), std::stoll(cols), std::stoi(updates), std::atof(argv[1]), options))
      return failed;
  }
}
