// Tests writing and reading of whole checkpoints.
#include "tessera/checkpoint/checkpoint.h"

#include "tests/checkpoint/checkpoint_testing.h"

namespace tessera::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using namespace testing;
using quant::DType;

// N ranks write and M other ranks read, with unrelated layouts. Checkpoints only move bits, so values must be equal,
// and bytes outside the requested boxes must not change.
TEST(Checkpoint, EveryLayoutReadsEveryOtherLayout) {
  const std::vector<TestTensor> tensors = sample_tensors();
  for (const auto& [writers, readers] : {std::pair{1, 4}, {2, 3}, {4, 1}, {5, 2}, {8, 6}}) {
    Random random(static_cast<std::uint64_t>(100 * writers + readers));
    const TemporaryFolder root;
    const fs::path folder = root / "step-00000020";
    const Layouts layouts = random_layouts(random, tensors, writers);
    on_ranks(writers, [&](comm::Communicator& group) { write_as(group, folder, tensors, layouts); });
    expect_intact(folder, tensors);
    for (int rank = 0; rank < readers; ++rank) {
      const CheckpointReader reader(folder);
      reader.verify(rank, readers);
      EXPECT_EQ(reader.step(), 20);
      EXPECT_EQ(reader.state()["lr"].get<double>(), 3e-4);
      for (const TestTensor& tensor : tensors) expect_reads(reader, tensor, random_request(random, tensor.shape()));
    }
  }
}

// Covers the layouts of real runs: rows sharded over tp and gtp with padding, columns sharded over tp.
TEST(Checkpoint, OtherMeshesReadIt) {
  const TestTensor rows{"qkv.weight", Kind::weight, DType::bf16, {50, 12}, 1};
  const TestTensor cols{"down.weight", Kind::weight, DType::fp32, {10, 31}, 2};
  const auto of_mesh = [&](int tp, int gtp) {
    const auto by_rows = layout::cut_rows(rows.shape(), {{"q", 30, 5}, {"k", 10, 5}, {"v", 10, 5}}, tp);
    return std::vector{layout::cut_local_rows(by_rows, gtp, 1, true),
                       layout::cut_local_rows(layout::cut_cols(cols.shape(), tp), gtp, 1, true)};
  };
  const TemporaryFolder root;
  const auto from = of_mesh(2, 3);
  on_ranks(6, [&](comm::Communicator& group) {
    write_as(group, root / "step-1", {rows, cols}, {from[0].ranks, from[1].ranks});
  });
  const CheckpointReader reader(root / "step-1");
  for (const auto& [tp, gtp] : {std::pair{1, 1}, {1, 4}, {3, 2}, {2, 1}, {7, 1}}) {
    const auto to = of_mesh(tp, gtp);
    for (const layout::LocalLayout& local : to[0].ranks) expect_reads(reader, rows, local);
    for (const layout::LocalLayout& local : to[1].ranks) expect_reads(reader, cols, local);
  }
}

// Covers sizes above the staging buffers and the thresholds of the reader: long rows, wide strides, narrow columns.
TEST(Checkpoint, ReadsLargeTensorsOfEveryShape) {
  const TestTensor wide{"wide", Kind::weight, DType::fp32, {40, 60000}, 1};
  const TestTensor tall{"tall", Kind::weight, DType::bf16, {200000, 12}, 2};
  const TestTensor line{"line", Kind::weight, DType::fp64, {700000}, 3};
  Random random(5);
  const TemporaryFolder root;
  const Layouts layouts = random_layouts(random, {wide, tall, line}, 3);
  on_ranks(3, [&](comm::Communicator& group) { write_as(group, root / "c", {wide, tall, line}, layouts); });
  const CheckpointReader reader(root / "c");
  for (const TestTensor& tensor : {wide, tall, line}) {
    for (const layout::LocalLayout& local : layout::cut_cols(tensor.shape(), 5).ranks)
      expect_reads(reader, tensor, local);
    expect_reads(reader, tensor, whole(tensor.shape()));
    expect_reads(reader, tensor, place(random, {{0, tensor.shape().rows, 3, 1}}));
    const auto bytes = filled(tensor, whole(tensor.shape()));
    EXPECT_EQ(reader.hash(reader.tensor(tensor.name, tensor.kind)), hash_of(bytes.data(), bytes.size()));
  }
}

TEST(Checkpoint, StoresEachElementOnceAndNoPadding) {
  const TemporaryFolder root;
  const std::vector<TestTensor> tensors = sample_tensors();
  write_whole(root / "c", tensors, 4);
  std::int64_t expected = 0, stored = 0;
  for (const TestTensor& tensor : tensors)
    expected += tensor.shape().elements() * static_cast<std::int64_t>(tensor.element());
  for (const auto& entry : fs::directory_iterator(root / "c")) {
    if (entry.path().extension() != ".safetensors") continue;
    const SafetensorsFile file(entry.path());
    for (const auto& [name, piece] : file.entries()) stored += piece.bytes;
  }
  EXPECT_EQ(stored, expected);
}

TEST(Checkpoint, TheHashOfATensorDoesNotDependOnTheLayout) {
  const TemporaryFolder root;
  const std::vector<TestTensor> tensors = sample_tensors();
  for (int ranks = 1; ranks <= 4; ++ranks) write_whole(root / std::to_string(ranks), tensors, ranks);
  for (const TestTensor& tensor : tensors) {
    const auto bytes = filled(tensor, whole(tensor.shape()));
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const CheckpointReader reader(root / std::to_string(ranks));
      EXPECT_EQ(reader.hash(reader.tensor(tensor.name, tensor.kind)), hash_of(bytes.data(), bytes.size()));
    }
  }
}

TEST(Checkpoint, TheRankThatVerifiesAFileFindsItsDamage) {
  const TemporaryFolder root;
  write_whole(root / "c", sample_tensors(), 3);
  const CheckpointReader before(root / "c");
  const std::string name = before.manifest().files.at(1).name;
  std::string bytes = slurp(root / "c" / name);
  bytes[bytes.size() - 3] ^= 4;
  spill(root / "c" / name, bytes);
  const CheckpointReader reader(root / "c");
  reader.verify(0, 3);
  reader.verify(2, 3);
  for (const auto& [part, parts] : {std::pair{1, 3}, {0, 1}}) {
    const std::string message = input_error([&, p = part, n = parts] { reader.verify(p, n); });
    EXPECT_NE(message.find(name), std::string::npos) << message;
  }
}

TEST(Checkpoint, MissingTruncatedAndForeignFilesAreInputErrors) {
  const TemporaryFolder root;
  write_whole(root / "c", sample_tensors(), 2);
  const fs::path file = root / "c" / CheckpointReader(root / "c").manifest().files.at(0).name;
  const std::string bytes = slurp(file);
  const auto fault = [&] { return input_error([&] { CheckpointReader reader(root / "c"); }); };
  spill(file, bytes.substr(0, bytes.size() - 1));
  EXPECT_NE(fault().find("truncated or foreign"), std::string::npos);
  fs::remove(file);
  EXPECT_NE(fault().find(file.filename().string()), std::string::npos);
  // The file has the size but not the content that the manifest describes. The read detects this fault.
  const TestTensor other{"other.weight", Kind::weight, DType::u8, {static_cast<std::int64_t>(bytes.size())}, 1};
  spill(file, std::string(bytes.size(), 'x'));
  const CheckpointReader reader(root / "c");
  const std::string message = input_error([&] {
    for (const TestTensor& tensor : sample_tensors()) expect_reads(reader, tensor, whole(tensor.shape()));
  });
  EXPECT_NE(message.find(file.filename().string()), std::string::npos) << message;
  EXPECT_NE(input_error([&] { CheckpointReader absent(root / "absent"); }).find("not a checkpoint"), std::string::npos);
}

TEST(Checkpoint, AMismatchedRequestIsAnInputError) {
  const TemporaryFolder root;
  write_whole(root / "c", sample_tensors());
  const CheckpointReader reader(root / "c");
  const TestTensor good = sample_tensors()[0];
  const auto fault = [&](TestTensor tensor) {
    std::vector<unsigned char> data(1 << 16);
    return input_error([&] {
      reader.read({tensor.name, tensor.kind, tensor.dtype, tensor.dims, whole(good.shape()), data.data()});
    });
  };
  TestTensor bad = good;
  bad.name = "absent.weight";
  EXPECT_NE(fault(bad).find("absent.weight"), std::string::npos);
  bad = good, bad.kind = Kind("exp_avg"), bad.name = "norm.weight";
  EXPECT_NE(fault(bad).find("exp_avg"), std::string::npos);
  bad = good, bad.dtype = DType::fp32;
  EXPECT_NE(fault(bad).find("expected fp32, got bf16 (--dtype bf16 reads it)"), std::string::npos);
  bad = good, bad.dims = {24, 37};
  EXPECT_NE(fault(bad).find("expected shape [24, 37], got [37, 24]"), std::string::npos);

  std::vector<unsigned char> data(1 << 16);
  const auto read = [&](const layout::LocalLayout& local) {
    reader.read({good.name, good.kind, good.dtype, good.dims, local, data.data()});
  };
  EXPECT_THAT(
      [&] {
        read({.pieces = {{{30, 8, 0, 24}, 0, 24}}, .size = 1000});
      },
      ThrowsMessage<Error>(HasSubstr("rows [30, 38)")));  // beyond the last row
  EXPECT_THAT(
      [&] {
        read({.pieces = {{{0, 2, 0, 24}, 0, 24}}, .size = 47});
      },
      ThrowsMessage<Error>(HasSubstr("but the local buffer has 47 elements")));  // beyond the buffer
}

TEST(Checkpoint, ReportsMomentsAndMasters) {
  const TemporaryFolder root;
  const std::vector<Kind> moments{Kind("exp_avg"), Kind("exp_avg_sq")};
  const auto tensor = [](const char* name, const Kind& kind) { return TestTensor{name, kind, DType::fp32, {4}, 1}; };
  const auto reader_of = [&](const std::vector<TestTensor>& tensors) {
    write_whole(root / "c", tensors);
    return CheckpointReader(root / "c");
  };
  const auto weight = tensor("a", Kind::weight), avg = tensor("a", Kind("exp_avg")),
             sq = tensor("a", Kind("exp_avg_sq"));
  EXPECT_FALSE(reader_of({weight}).has_state(moments));
  EXPECT_FALSE(reader_of({weight}).has_master());
  EXPECT_TRUE(reader_of({weight, avg, sq}).has_state(moments));
  EXPECT_TRUE(reader_of({weight, tensor("a", Kind::master)}).has_master());
  EXPECT_THAT(
      [&] {
        reader_of({weight, avg}).has_state(moments);
      },
      ThrowsMessage<InputError>(HasSubstr("expected the whole state of its update rule, or no state")));
  EXPECT_THAT(
      [&] {
        reader_of({weight, sq}).has_state(moments);
      },
      ThrowsMessage<InputError>(HasSubstr("expected the whole state of its update rule, or no state")));
  EXPECT_TRUE(reader_of({weight, avg, sq, tensor("frozen", Kind::weight)}).has_state(moments));
}

// If the program's layouts are wrong, no rank may report a complete checkpoint.
TEST(Checkpoint, IncompletePiecesFailOnEveryRank) {
  const TestTensor tensor{"w", Kind::weight, DType::fp32, {8, 4}, 1};
  const auto half = [](std::int64_t row, std::int64_t rows) {
    return layout::LocalLayout{.pieces = {{{row, rows, 0, 4}, 0, 4}}, .size = rows * 4};
  };
  for (const auto& [rows, said] : {std::pair{3, "cover 28 of 32"}, {5, "overlap"}}) {
    const TemporaryFolder root;
    std::vector<std::string> messages(2);
    on_ranks(2, [&, rows = rows](comm::Communicator& group) {
      try {
        write_as(group, root / "step-00000001", {tensor}, {{half(0, 4), half(8 - rows, rows)}});
      } catch (const InputError& error) {
        ADD_FAILURE() << "the program's mistake is not the user's: " << error.what();
      } catch (const Error& error) {
        messages[static_cast<std::size_t>(group.rank())] = error.what();
      }
    });
    EXPECT_EQ(messages[0], messages[1]);
    EXPECT_NE(messages[0].find(said), std::string::npos) << messages[0];
    EXPECT_TRUE(fs::is_empty(root.path()));
  }
}

TEST(Checkpoint, RanksMayOmitTensorsThatTheyDoNotWrite) {
  const TestTensor tensor{"w", Kind::weight, DType::fp32, {8, 4}, 1};
  const TemporaryFolder root;
  on_ranks(3, [&](comm::Communicator& group) {
    if (group.rank() == 1) {
      write_as(group, root / "c", {tensor}, {std::vector<layout::LocalLayout>(3, whole(tensor.shape()))});
    } else {
      write_as(group, root / "c", {}, {});
    }
  });
  expect_intact(root / "c", {tensor});
  EXPECT_EQ(CheckpointReader(root / "c").manifest().files.size(), 1u);
}

}  // namespace
}  // namespace tessera::checkpoint
