// Tests tables whose rows are exchanged by index: when the exchange is chosen, and that only the number of transferred
// bytes differs from a gather of the table.
#include "tessera/shard/rows/rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/comm/local/world.h"
#include "tessera/quant/bfloat16.h"
#include "tessera/quant/elementwise.h"
#include "tessera/runtime/runtime.h"
#include "tessera/shard/parameter_layouts.h"
#include "tessera/shard/sizes.h"
#include "tests/shard/dense_parallel.h"

namespace tessera::shard {
namespace {

using quant::DType;

bool decides(std::int64_t rows, const ParameterTypes& types, const Cuts& cuts, ParameterSpec spec = {}) {
  if (spec.dims.empty()) spec.dims = {1000, 8};
  if (spec.compute.size() == 0) spec.compute = layout::replicated({1000, 8}, 1);
  spec.reads.per_microbatch = rows;
  return exchanges_rows(spec, layouts_of(spec), types, cuts);
}

// fp32 at gtp 4. A gather receives 3/4 of 1000 rows of 32 bytes, and the exchange of gradients receives 3 times 250
// rows: 48,000 bytes together. An exchange of rows receives 3 (32 + 8) bytes for each row that is read, and as many for
// its gradient: 240 bytes together.
TEST(ExchangesRows, WhenThatReceivesFewerBytes) {
  const Cuts cuts{.parts = 4};
  EXPECT_TRUE(decides(199, {}, cuts));
  EXPECT_FALSE(decides(200, {}, cuts));
  // In bf16, the gather and the gradients have half as many bytes: 24,000. A row has 3 (16 + 8 + 16 + 8) = 144 bytes,
  // because indices do not become smaller.
  const ParameterTypes bf16{.model = DType::bf16, .accumulator = DType::fp32, .wire = DType::bf16};
  EXPECT_TRUE(decides(166, bf16, cuts));
  EXPECT_FALSE(decides(167, bf16, cuts));
  // A frozen table has no gradients: 24,000 bytes for the gather, and 120 bytes for each row.
  EXPECT_TRUE(decides(199, {}, cuts, {.trainable = false}));
  EXPECT_FALSE(decides(200, {}, cuts, {.trainable = false}));
  // With nodes of two ranks, the exchange of gradients receives 2 * 250 rows in the wire type from the node, and 250
  // summed rows in fp32 from the other node.
  EXPECT_TRUE(decides((12000 + 2 * 250 * 16 + 250 * 32 - 1) / 144, bf16, {.parts = 4, .node = 2}));
  EXPECT_FALSE(decides((12000 + 2 * 250 * 16 + 250 * 32 + 143) / 144, bf16, {.parts = 4, .node = 2}));
}

TEST(ExchangesRows, OnlyWhereRowsAreCutOverGtp) {
  EXPECT_FALSE(decides(1, {}, {.parts = 1}));
  EXPECT_FALSE(decides(0, {}, {.parts = 4}));
  EXPECT_FALSE(decides(1, {}, {.parts = 4}, {.sharded = false}));
  EXPECT_FALSE(decides(1, {}, {.parts = 4}, {.compute = layout::cut_cols({1000, 8}, 2)}));
  EXPECT_FALSE(decides(1, {}, {.parts = 4}, {.compute = layout::replicated({1000, 8}, 2)}));
  EXPECT_FALSE(decides(1, {}, {.parts = 4}, {.reads = {.lookup = Lookup::gather}}));
  EXPECT_TRUE(decides(5000, {}, {.parts = 4}, {.reads = {.lookup = Lookup::rows}}));
  EXPECT_FALSE(decides(5000, {}, {.parts = 1}, {.reads = {.lookup = Lookup::rows}}));
  EXPECT_THROW(
      decides(1, {}, {.parts = 4}, {.compute = layout::cut_cols({1000, 8}, 2), .reads = {.lookup = Lookup::rows}}),
      Error);
}

bool has_rows(std::int64_t rows, const Cuts& cuts, ParameterSpec spec = {}) {
  if (spec.dims.empty()) spec.dims = {1000, 8};
  if (spec.compute.size() == 0) spec.compute = layout::replicated({1000, 8}, 1);
  spec.reads.per_microbatch = rows;
  return has_row_gradients(spec, layouts_of(spec, cuts), {}, cuts);
}

// On one rank, a gradient of rows has fewer bytes than a gradient of the table if a microbatch reads fewer rows.
TEST(RowGradients, AreSmallerThanTheTableOnOneRank) {
  const ParameterSpec tp2{.compute = layout::cut_rows({1000, 8}, {{"rows", 1000}}, 2)};
  EXPECT_TRUE(has_rows(999, {}));
  EXPECT_FALSE(has_rows(1000, {}));
  EXPECT_TRUE(has_rows(499, {}, tp2));
  EXPECT_FALSE(has_rows(500, {}, tp2));
  EXPECT_TRUE(has_rows(999, {.replicas = 2, .zero = true}));
  EXPECT_FALSE(has_rows(0, {}));
  EXPECT_TRUE(has_rows(5000, {}, {.reads = {.lookup = Lookup::rows}}));
  EXPECT_FALSE(has_rows(1, {}, {.reads = {.lookup = Lookup::gather}}));
  EXPECT_FALSE(has_rows(1, {}, {.trainable = false}));
  EXPECT_FALSE(has_rows(1, {}, {.sharded = false}));
  EXPECT_FALSE(has_rows(1, {}, {.partial_gradient = true}));
  EXPECT_FALSE(has_rows(1, {}, {.produced_once = true}));
  EXPECT_FALSE(has_rows(1, {}, {.compute = layout::cut_cols({1000, 8}, 2)}));
  EXPECT_FALSE(has_rows(1, {}, {.compute = layout::replicated({1000, 8}, 2)}));
  // Several ranks of a compute place: as the exchange of rows.
  EXPECT_TRUE(has_rows(199, {.parts = 4}));
  EXPECT_FALSE(has_rows(200, {.parts = 4}));
  EXPECT_FALSE(has_rows(199, {.parts = 4}, {.trainable = false}));
}

constexpr std::int64_t kRows = 11, kColumns = 3, kTokens = 6;
constexpr int kBlocks = 12, kSteps = 4;

struct Case {
  int tp = 1, gtp = 1, dp = 1;
  Lookup lookup = Lookup::gather;
  DType model = DType::fp32;
  int node = 1;
  bool disturbed = false;  // poisoned buffers, delays, smallest budgets and ZeRO-1
};

float weight_value(int step, std::int64_t row, std::int64_t column) {
  // bf16 represents these integers exactly.
  return static_cast<float>((std::int64_t{step} * 50 + row * 7 + column) % 256);
}

// Returns the tokens of a block. Rows 3 to 10 are read at random and repeatedly. Row 0 is read only in the first
// blocks, row 1 in every block, and row 2 never. One block has only one token, and some blocks are shorter than others.
std::vector<std::int64_t> tokens_of(int block) {
  std::vector<std::int64_t> tokens{1};
  if (block < 4) tokens.push_back(0);
  const std::int64_t more = block == 7 ? 0 : kTokens - (block % 3 == 0 ? 1 : 0);
  while (static_cast<std::int64_t>(tokens.size()) < more)
    tokens.push_back(3 + (std::int64_t{block} * 5 + static_cast<std::int64_t>(tokens.size()) * tokens.back() * 3) %
                             (kRows - 3));
  return tokens;
}

// Returns values of many magnitudes. In rows 0 and 1 the first column is too small for bf16 and rounds to -0.
float gradient_value(int step, int block, std::int64_t at, std::int64_t row, std::int64_t column) {
  if (row < 2 && column == 0) return -1e-45F;
  const auto bits = static_cast<std::uint64_t>(((step * kBlocks + block) * kTokens + at) * kColumns + column + 1) *
                    0x9E3779B97F4A7C15;
  return std::ldexp(static_cast<float>(bits >> 40), static_cast<int>(bits % 13) - 30) * (bits >> 20 & 1 ? 1.0F : -1.0F);
}

class Rank {
 public:
  Rank(ParallelGroups& parallel, const Case& chosen)
      : case_(chosen), parallel_(parallel), runtime_(parallel, types(), options(chosen)) {
    table_ = runtime_.parameters().add({.name = "table",
                                        .dims = {kRows, kColumns},
                                        .compute = layout::cut_rows({kRows, kColumns}, {{"rows", kRows}}, chosen.tp),
                                        .reads = {.per_microbatch = kTokens, .lookup = chosen.lookup}});
    other_ =
        runtime_.parameters().add({.name = "other", .dims = {4, 2}, .compute = layout::replicated({4, 2}, chosen.tp)});
    runtime_.program().publish(other_);
    part_ = layout::even_part(kRows, parallel.place().compute, chosen.tp);
    write(0);
  }

  void step(int step) {
    const int share = kBlocks / case_.dp, microbatches = share / case_.gtp;
    runtime_.program().begin_step(schedule::StepKind::train, microbatches);
    for (int mb = 0; mb < microbatches; ++mb) {
      const int block = parallel_.place().replica * share + mb * case_.gtp + parallel_.place().part;
      runtime_.program().begin_microbatch(mb);
      const std::vector<std::int64_t> tokens = tokens_of(block);
      read(step, mb, tokens);
      use_other(mb);
      give(step, mb, block, tokens);
      runtime_.program().end_microbatch(mb);
    }
    runtime_.program().end_step();
    EXPECT_EQ(runtime_.statistics().recorded, step == 0);
    EXPECT_FALSE(runtime_.statistics().departed);
  }

  void evaluate(int step) {
    runtime_.program().begin_step(schedule::StepKind::evaluate, 1);
    runtime_.program().begin_microbatch(0);
    read(step, 0, tokens_of(parallel_.place().part));
    runtime_.program().end_microbatch(0);
    runtime_.program().end_step();
  }

  // Writes new weights. If replicas exchange the weights, the exchange is delayed.
  void write(int step) {
    if (case_.disturbed && parallel_.has(0, mesh::Transfer::replicas))
      parallel_.of(0, mesh::Transfer::replicas).lane().delay(0.002);
    ShardedParameter& parameter = runtime_.parameter(table_);
    for (const layout::Piece& piece : parameter.local_state.pieces)
      for (std::int64_t i = 0; i < piece.box.elements(); ++i) {
        const float value = weight_value(step, piece.box.row + i / kColumns, i % kColumns);
        quant::cast(&value, DType::fp32,
                    parameter.state_weight() + static_cast<std::size_t>(piece.offset + i) * quant::size_of(case_.model),
                    case_.model, 1);
      }
    runtime_.program().publish(table_);
    if (step > 0) runtime_.program().publish(other_);
  }

  // Compares the bits, so that the signs of zeros must be equal.
  void collect(std::vector<std::uint32_t>& logical) {
    ShardedParameter& parameter = runtime_.parameter(table_);
    const auto* sum = reinterpret_cast<const float*>(parameter.state_gradient());
    for (const layout::Piece& piece : parameter.local_state.pieces)
      for (std::int64_t i = 0; i < piece.box.elements(); ++i)
        logical[static_cast<std::size_t>(piece.box.row * kColumns + i)] =
            std::bit_cast<std::uint32_t>(sum[piece.offset + i]);
  }

  runtime::Runtime& runtime() { return runtime_; }
  schedule::ParameterId table() const { return table_; }

 private:
  ParameterTypes types() const { return {.model = case_.model, .accumulator = DType::fp32, .wire = case_.model}; }
  static runtime::RuntimeOptions options(const Case& chosen) {
    runtime::RuntimeOptions options{.zero = false, .nodes = {chosen.node}, .coalesce_bytes = 1 << 20};
    if (!chosen.disturbed) return options;
    options.gather_budget = options.reduce_budget = schedule::kMinimum;
    options.coalesce_bytes = 0;
    options.zero = true;
    options.replay = {.poison = true, .delay_seed = 5, .longest_delay = 0.0005};
    return options;
  }

  bool by_rows() { return runtime_.parameter(table_).by_rows; }
  bool has_row_gradients() { return runtime_.parameter(table_).row_gradients; }
  std::vector<std::int64_t> local(const std::vector<std::int64_t>& tokens) const {
    std::vector<std::int64_t> rows;
    for (const std::int64_t token : tokens)
      rows.push_back(token >= part_.begin && token < part_.end ? token - part_.begin : -1);
    return rows;
  }
  RowIds ids(const std::vector<std::int64_t>& tokens) const {
    return {.data = tokens.data(), .count = static_cast<std::int64_t>(tokens.size()), .first = part_.begin};
  }

  void read(int step, int mb, const std::vector<std::int64_t>& tokens) {
    const std::vector<std::int64_t> rows = local(tokens);
    const std::size_t bytes = kColumns * quant::size_of(case_.model);
    std::vector<std::byte> found(tokens.size() * bytes, std::byte{0x7F});
    if (by_rows()) {
      runtime_.program().gather_rows(table_, ids(tokens), found.data(), {mb, schedule::Pass::forward}, {});
    } else {
      const auto* table = static_cast<const std::byte*>(
          runtime_.program().consume(table_, {mb, schedule::Pass::forward}).weight().data);
      for (std::size_t at = 0; at < rows.size(); ++at) {
        if (rows[at] < 0) std::fill_n(&found[at * bytes], bytes, std::byte{0});
        if (rows[at] >= 0) std::copy_n(table + static_cast<std::size_t>(rows[at]) * bytes, bytes, &found[at * bytes]);
      }
      runtime_.program().release(table_, {mb, schedule::Pass::forward});
    }
    std::vector<float> values(tokens.size() * kColumns);
    quant::cast(found.data(), case_.model, values.data(), DType::fp32, static_cast<std::int64_t>(values.size()));
    for (std::size_t at = 0; at < values.size(); ++at) {
      const std::size_t token = at / kColumns;
      const float expected = rows[token] < 0 ? 0 : weight_value(step, tokens[token], static_cast<std::int64_t>(at) % 3);
      ASSERT_EQ(values[at], expected) << "token " << token;
    }
  }

  void use_other(int mb) {
    runtime_.program().consume(other_, {mb, schedule::Pass::forward});
    runtime_.program().release(other_, {mb, schedule::Pass::forward});
    std::fill_n(static_cast<float*>(runtime_.program().grad_buffer(other_, mb).data), 8, 1.0F);
    runtime_.program().produce(other_, mb);
  }

  // Adds the gradients of the tokens in token order, starting from rows of zeros.
  void give(int step, int mb, int block, const std::vector<std::int64_t>& tokens) {
    std::vector<std::int64_t> targets = local(tokens);
    float* sums = nullptr;
    std::int64_t size = part_.size();
    if (has_row_gradients()) {
      const runtime::RowGradient gradient = runtime_.program().grad_rows(table_, ids(tokens), mb);
      sums = static_cast<float*>(gradient.data);
      targets.assign(gradient.slots, gradient.slots + tokens.size());
      size = static_cast<std::int64_t>(tokens.size());
    } else {
      sums = static_cast<float*>(runtime_.program().grad_buffer(table_, mb).data);
    }
    std::fill_n(sums, size * kColumns, 0.0F);
    for (std::size_t at = 0; at < tokens.size(); ++at)
      for (std::int64_t column = 0; targets[at] >= 0 && column < kColumns; ++column)
        sums[targets[at] * kColumns + column] +=
            gradient_value(step, block, static_cast<std::int64_t>(at), tokens[at], column);
    runtime_.program().produce(table_, mb);
  }

  Case case_;
  ParallelGroups& parallel_;
  runtime::Runtime runtime_;
  schedule::ParameterId table_ = 0, other_ = 0;
  layout::Range part_;
};

// Returns the logical elements of main_grad of every step.
std::vector<std::vector<std::uint32_t>> run(const Case& chosen) {
  std::vector<std::vector<std::uint32_t>> sums(kSteps, std::vector<std::uint32_t>(kRows * kColumns, 0xFFFFFFFF));
  std::mutex mutex;
  comm::run_local(chosen.tp * chosen.gtp * chosen.dp, {}, [&](comm::World& world) {
    ParallelGroups parallel = shard::dense_parallel(world, chosen.tp, chosen.gtp, chosen.dp);
    Rank rank(parallel, chosen);
    EXPECT_EQ(rank.runtime().parameter(rank.table()).by_rows, chosen.lookup == Lookup::rows && chosen.gtp > 1);
    EXPECT_EQ(rank.runtime().parameter(rank.table()).row_gradients, chosen.lookup == Lookup::rows);
    for (int step = 0; step < kSteps; ++step) {
      rank.step(step);
      {
        const std::lock_guard lock(mutex);
        rank.collect(sums[static_cast<std::size_t>(step)]);
      }
      if (step == 2) rank.evaluate(step);
      rank.write(step + 1);
      if (step == 1) rank.evaluate(step + 1);
    }
  });
  return sums;
}

class Rows : public ::testing::TestWithParam<std::tuple<int, int, DType>> {};

TEST_P(Rows, GiveTheBitsOfTheWholeTable) {
  const auto [tp, dp, model] = GetParam();
  const auto expected = run({.tp = tp, .dp = dp, .model = model});
  for (int gtp = 1; gtp <= 4; ++gtp) {
    if (kBlocks / dp % gtp != 0) continue;
    for (const bool disturbed : {false, true})
      for (const Lookup lookup : {Lookup::gather, Lookup::rows})
        EXPECT_EQ(expected,
                  run({.tp = tp, .gtp = gtp, .dp = dp, .lookup = lookup, .model = model, .disturbed = disturbed}))
            << "gtp " << gtp << " " << name_of(lookup);
  }
  // Checks the signs of zeros. All terms of row 1 are -0. Row 0 has such a term only in some blocks.
  const auto first = [&](std::int64_t row) { return expected[0][static_cast<std::size_t>(row * kColumns)]; };
  if (model == DType::bf16 && dp == 1) {
    EXPECT_EQ(first(1), std::bit_cast<std::uint32_t>(-0.0F));
  }
  if (model == DType::bf16) {
    EXPECT_EQ(first(0), std::bit_cast<std::uint32_t>(0.0F));
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, Rows,
                         ::testing::Combine(::testing::Values(1, 2), ::testing::Values(1, 2),
                                            ::testing::Values(DType::fp32, DType::bf16)),
                         [](const auto& info) {
                           return "tp" + std::to_string(std::get<0>(info.param)) + "dp" +
                                  std::to_string(std::get<1>(info.param)) +
                                  std::string(name_of(std::get<2>(info.param)));
                         });

TEST(RowsOrder, OfNodesIsThatOfTheWholeTable) {
  for (const DType model : {DType::fp32, DType::bf16})
    for (const int gtp : {2, 3, 4})
      for (const int node : {1, 2, 3, 4}) {
        Case chosen{.gtp = gtp, .model = model, .node = node};
        const auto expected = run(chosen);
        chosen.lookup = Lookup::rows;
        EXPECT_EQ(expected, run(chosen)) << gtp << " ranks in nodes of " << node;
        chosen.disturbed = true;
        EXPECT_EQ(expected, run(chosen)) << gtp << " ranks in nodes of " << node;
      }
}

// In a microbatch, a rank receives rows and indices of six tokens from each of two ranks, in the forward pass and in
// the backward pass.
TEST(RowsTraffic, IsStaticAndCounted) {
  comm::run_local(3, {}, [](comm::World& world) {
    ParallelGroups parallel = shard::dense_parallel(world, 1, 3, 1);
    Rank rank(parallel, {.gtp = 3, .lookup = Lookup::rows});
    for (int step = 0; step < 2; ++step) {
      rank.step(step);
      rank.write(step + 1);
    }
    const runtime::StepStatistics& statistics = rank.runtime().statistics();
    // The ranks store 2, 2 and 0 rows of the parameter "other".
    const std::int64_t messages = kTokens * 4 * 2 * (kColumns * 4 + 8), others = 32;
    const std::int64_t shard = std::array<std::int64_t, 3>{4, 4, 0}[static_cast<std::size_t>(world.rank())] * 4;
    EXPECT_EQ(statistics.reduced_bytes, messages + shard * 4 * 2);
    // "other" may stay in the arena, so it need not be gathered again.
    EXPECT_GE(statistics.gathered_bytes, messages + others - shard);
    EXPECT_EQ((statistics.gathered_bytes - messages) % (others - shard), 0);
    // The table needs no bytes in the gather arena. Its staging is only large enough for the rows of a microbatch.
    const std::vector<schedule::ParameterSize> sizes = rank.runtime().parameters().sizes();
    EXPECT_EQ(sizes[0].gathered, 0);
    EXPECT_EQ(sizes[0].staging, 4 * 256);  // 256 bytes each for rows, indices, slots and a map
    EXPECT_EQ(rank.runtime().by_first_use(), (std::vector<schedule::ParameterId>{0, 1}));
  });
}

// Returns the rows of the table for these ids, one after another.
std::vector<float> rows_of(const std::vector<std::int64_t>& ids) {
  std::vector<float> rows;
  for (const std::int64_t id : ids)
    for (std::int64_t column = 0; column < kColumns; ++column) rows.push_back(weight_value(0, id, column));
  return rows;
}

// Returns ids that are different for each round and rank.
std::vector<std::int64_t> ids_of(std::int64_t round, int rank) {
  std::vector<std::int64_t> ids;
  for (std::int64_t at = 0; at < kTokens; ++at) ids.push_back((at * 5 + round * 7 + rank) % kRows);
  return ids;
}

void while_nothing_may_happen() {
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

const std::vector<float> kUntouched(kTokens* kColumns, -7);

// Calls visit(gather, table, group, ids) on each of two ranks. `ids` is the memory of the ids to read; the test writes
// the ids later.
template <typename Visit>
void with_row_gather(Visit visit) {
  comm::run_local(2, {}, [&](comm::World& world) {
    ParallelGroups parallel = shard::dense_parallel(world, 1, 2, 1);
    Rank rank(parallel, {.gtp = 2, .lookup = Lookup::rows});
    const ShardedParameter& table = rank.runtime().parameter(rank.table());
    RowGather gather(table, parallel);
    std::vector<std::int64_t> ids(kTokens, -1);
    visit(gather, table, parallel.of(0, mesh::Transfer::rows), ids);
  });
}

// The ids may be written long after the read is requested, and compute may use the memory of the result until then.
TEST(RowGathers, ReadIdsOnceWrittenAndWriteOnceTheResultIsFree) {
  with_row_gather([](RowGather& gather, const ShardedParameter& table, comm::Communicator& group, auto& ids) {
    std::vector<float> out = kUntouched;
    base::Promise written, free;
    const base::Fence read =
        gather.start(table, group, {.data = ids.data(), .count = kTokens}, written.fence(), out.data(), free.fence());
    while_nothing_may_happen();
    std::ranges::copy(ids_of(0, group.rank()), ids.begin());
    written.complete();
    while_nothing_may_happen();
    EXPECT_EQ(out, kUntouched);
    EXPECT_FALSE(read.done());
    free.complete();
    read.synchronize();
    EXPECT_EQ(out, rows_of(ids));
  });
}

// Received rows are kept until they are copied to the result. Afterwards, other rows may be gathered.
TEST(RowGathers, GatherRowsLongBeforeTheyArePlaced) {
  with_row_gather([](RowGather& gather, const ShardedParameter& table, comm::Communicator& group, auto& ids) {
    const RowIds reading{.data = ids.data(), .count = kTokens};
    for (std::int64_t round = 0; round < 6; round += 2) {
      const std::vector<std::int64_t> brought = ids_of(round, group.rank()), others = ids_of(round + 1, group.rank());
      std::vector<float> out = kUntouched;
      base::Promise begin, free;
      gather.gather_early(table, group, reading, begin.fence());
      while_nothing_may_happen();
      std::ranges::copy(brought, ids.begin());
      begin.complete();
      group.lane().synchronize();
      std::ranges::copy(others, ids.begin());  // the gather has already read the old ids
      const base::Fence placed = gather.place(table, group, kTokens, out.data(), free.fence());
      while_nothing_may_happen();
      EXPECT_EQ(out, kUntouched);
      free.complete();
      placed.synchronize();
      EXPECT_EQ(out, rows_of(brought));
      gather.start(table, group, reading, {}, out.data(), {}).synchronize();
      EXPECT_EQ(out, rows_of(others));
    }
  });
}

TEST(RowsCalls, AreRefusedForOtherTables) {
  comm::run_local(2, {}, [](comm::World& world) {
    ParallelGroups parallel = shard::dense_parallel(world, 1, 2, 1);
    Rank rank(parallel, {.gtp = 2, .lookup = Lookup::rows});
    runtime::Runtime& runtime = rank.runtime();
    const schedule::ParameterId table = rank.table(), other = table + 1;
    std::array<float, 8 * kColumns> out{};
    const std::vector<std::int64_t> tokens{4, -1, 7, 4, kRows, 7, 1};
    const RowIds one{tokens.data(), 1}, most{tokens.data(), kTokens}, many{tokens.data(), kTokens + 1};
    EXPECT_THROW(runtime.program().gather_rows(table, one, out.data(), {0, schedule::Pass::forward}, {}),
                 Error);  // the call is outside of a microbatch
    runtime.program().begin_step(schedule::StepKind::train, 1);
    runtime.program().begin_microbatch(0);
    EXPECT_THROW(runtime.program().consume(table, {0, schedule::Pass::forward}), Error);
    EXPECT_THROW(runtime.program().grad_buffer(table, 0), Error);
    EXPECT_THROW(runtime.program().gather_rows(other, one, out.data(), {0, schedule::Pass::forward}, {}), Error);
    EXPECT_THROW(runtime.program().grad_rows(other, one, 0), Error);
    EXPECT_THROW(runtime.program().gather_rows(table, many, out.data(), {0, schedule::Pass::forward}, {}), Error);
    EXPECT_THROW(runtime.program().grad_rows(table, many, 0), Error);
    const runtime::RowGradient gradient = runtime.program().grad_rows(table, most, 0);
    EXPECT_EQ(std::vector(gradient.slots, gradient.slots + kTokens), (std::vector<std::int64_t>{0, -1, 2, 0, -1, 2}));
    runtime.program().produce(table, 0);
    EXPECT_THROW(runtime.program().grad_rows(table, one, 0), Error);
    runtime.program().end_microbatch(0);
    runtime.program().end_step();
  });
}

}  // namespace
}  // namespace tessera::shard
