// Helpers of the checkpoint tests: temporary folders, tensors with values that depend only on the logical index, and
// random layouts.
#pragma once
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folder.h"
#include "tessera/comm/local/world.h"

namespace tessera::checkpoint::testing {

namespace fs = std::filesystem;
using Random = std::mt19937_64;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "tessera-test-XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) throw Error("mkdtemp failed");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

inline std::int64_t pick(Random& random, std::int64_t low, std::int64_t high) {  // `low` and `high` are included
  return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline std::string slurp(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

inline void spill(const fs::path& path, const std::string& text) {
  fs::remove(path);  // some file systems sync a file that is truncated and written again
  std::ofstream(path, std::ios::binary) << text;
}

// Creates a folder that looks complete.
inline void make_step(const fs::path& parent, std::int64_t step, const std::string& text = "x") {
  PartialFolder folder(parent / step_folder_name(step));
  spill(folder.path() / "manifest.json", text);
  folder.commit();
}

// Runs `body` in a child process and returns waitpid's status.
inline int in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    int code = 0;
    try {
      body();
    } catch (const std::exception&) {
      code = 3;
    }
    ::_exit(code);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

// Calls `run` and returns the message of its InputError. Fails the test if `run` throws another error or no error.
inline std::string input_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const InputError& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "expected an InputError, got: " << error.what();
    return {};
  }
  ADD_FAILURE() << "expected an InputError, got none";
  return {};
}

struct TestTensor {
  std::string name;
  Kind kind;
  quant::DType dtype;
  std::vector<std::int64_t> dims;
  std::uint64_t seed;

  layout::Shape shape() const { return layout::matrix_shape(dims); }
  std::size_t element() const { return quant::size_of(dtype); }
};

// Returns the bits of a logical element. All bit patterns occur, including NaNs, because checkpoints copy bits.
inline std::uint64_t value_of(const TestTensor& tensor, std::int64_t index) {
  std::uint64_t x = tensor.seed * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(index) + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr unsigned char kUntouched = 0xA5;

// Returns the local buffer of a layout. Elements of the layout have their value_of; all other bytes are kUntouched.
inline std::vector<unsigned char> filled(const TestTensor& tensor, const layout::LocalLayout& local) {
  const std::size_t element = tensor.element();
  std::vector<unsigned char> data(static_cast<std::size_t>(local.size) * element, kUntouched);
  for (const layout::Piece& piece : local.pieces)
    for (std::int64_t r = 0; r < piece.box.rows; ++r)
      for (std::int64_t c = 0; c < piece.box.cols; ++c) {
        const auto value = value_of(tensor, (piece.box.row + r) * tensor.shape().cols + piece.box.col + c);
        std::memcpy(&data[static_cast<std::size_t>(piece.offset + r * piece.stride + c) * element], &value, element);
      }
  return data;
}

// Divides the shape at random into boxes, which together cover it without overlaps.
inline std::vector<layout::Box> random_tiling(Random& random, layout::Shape shape, int cuts) {
  std::vector<layout::Box> boxes;
  if (shape.elements() > 0) boxes.push_back({0, shape.rows, 0, shape.cols});
  for (int i = 0; i < cuts && !boxes.empty(); ++i) {
    layout::Box& box = boxes[static_cast<std::size_t>(pick(random, 0, static_cast<std::int64_t>(boxes.size()) - 1))];
    layout::Box rest = box;
    if (pick(random, 0, 2) > 0 ? box.rows > 1 : box.cols < 2 && box.rows > 1) {
      const std::int64_t at = pick(random, 1, box.rows - 1);
      rest.row += at, rest.rows -= at, box.rows = at;
    } else if (box.cols > 1) {
      const std::int64_t at = pick(random, 1, box.cols - 1);
      rest.col += at, rest.cols -= at, box.cols = at;
    } else {
      continue;
    }
    boxes.push_back(rest);
  }
  return boxes;
}

// Places the boxes one after another in a local buffer, with gaps between them and between their rows.
inline layout::LocalLayout place(Random& random, const std::vector<layout::Box>& boxes) {
  layout::LocalLayout local;
  for (const layout::Box& box : boxes) {
    local.size += pick(random, 0, 3);
    const std::int64_t stride = box.cols + (pick(random, 0, 1) ? pick(random, 0, 5) : 0);
    local.pieces.push_back({box, local.size, stride});
    local.size += stride * box.rows;
  }
  return local;
}

// Returns layouts in which each element is on exactly one rank. Ranks may be empty.
inline std::vector<layout::LocalLayout> random_storage(Random& random, layout::Shape shape, int ranks) {
  std::vector<std::vector<layout::Box>> boxes(static_cast<std::size_t>(ranks));
  for (const layout::Box& box :
       random_tiling(random, shape, static_cast<int>(pick(random, 0, std::int64_t{3} * ranks))))
    boxes[static_cast<std::size_t>(pick(random, 0, ranks - 1))].push_back(box);
  std::vector<layout::LocalLayout> locals;
  for (const auto& own : boxes) locals.push_back(place(random, own));
  return locals;
}

// Returns a layout of random boxes inside the shape. Boxes may overlap.
inline layout::LocalLayout random_request(Random& random, layout::Shape shape) {
  std::vector<layout::Box> boxes;
  for (std::int64_t i = pick(random, 0, 4); i > 0 && shape.elements() > 0; --i) {
    layout::Box box{pick(random, 0, shape.rows - 1), 0, pick(random, 0, shape.cols - 1), 0};
    box.rows = pick(random, 1, shape.rows - box.row);
    box.cols = pick(random, 1, shape.cols - box.col);
    boxes.push_back(box);
  }
  return place(random, boxes);
}

inline std::vector<TestTensor> sample_tensors() {
  using quant::DType;
  return {{"embedding.weight", Kind::weight, DType::bf16, {37, 24}, 1},
          {"embedding.weight", Kind::master, DType::fp32, {37, 24}, 2},
          {"embedding.weight", Kind("exp_avg"), DType::fp32, {37, 24}, 3},
          {"embedding.weight", Kind("exp_avg_sq"), DType::fp64, {37, 24}, 4},
          {"norm.weight", Kind::weight, DType::bf16, {61}, 5},
          {"experts.weight", Kind::weight, DType::fp64, {3, 5, 7}, 6},
          {"tall.weight", Kind::weight, DType::fp32, {900, 3}, 7},
          {"one.weight", Kind::weight, DType::fp32, {1}, 8},
          {"none.weight", Kind::weight, DType::fp32, {0, 4}, 9}};
}

// indexed as layouts[tensor][rank]
using Layouts = std::vector<std::vector<layout::LocalLayout>>;

inline Layouts random_layouts(Random& random, const std::vector<TestTensor>& tensors, int ranks) {
  Layouts layouts;
  for (const TestTensor& tensor : tensors) layouts.push_back(random_storage(random, tensor.shape(), ranks));
  return layouts;
}

// Calls `body` on each rank with a communicator of all ranks.
inline void on_ranks(int ranks, const std::function<void(comm::Communicator&)>& body,
                     const comm::LocalOptions& options = {}) {
  comm::run_local(ranks, options, [&](comm::World& world) {
    std::vector<int> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
    const auto group = world.make_group("all", {all});
    body(*group);
  });
}

inline void write_as(comm::Communicator& group, const fs::path& folder, const std::vector<TestTensor>& tensors,
                     const Layouts& layouts, const WriteOptions& options = {}) {
  CheckpointContents contents{.step = 20, .state = {{"tokens", 12345}, {"lr", 3e-4}}, .tensors = {}};
  std::vector<std::vector<unsigned char>> buffers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const layout::LocalLayout& local = layouts[i][static_cast<std::size_t>(group.rank())];
    buffers.push_back(filled(tensors[i], local));
    contents.tensors.push_back(
        {tensors[i].name, tensors[i].kind, tensors[i].dtype, tensors[i].dims, local, buffers.back().data()});
  }
  write_checkpoint(folder, contents, group, options);
}

// Writes a checkpoint of all tensors from `ranks` ranks with random layouts.
inline void write_whole(const fs::path& folder, const std::vector<TestTensor>& tensors, int ranks = 1) {
  Random random(1);
  const Layouts layouts = random_layouts(random, tensors, ranks);
  on_ranks(ranks, [&](comm::Communicator& group) { write_as(group, folder, tensors, layouts); });
}

inline void expect_reads(const CheckpointReader& reader, const TestTensor& tensor, const layout::LocalLayout& local) {
  const std::vector<unsigned char> expected = filled(tensor, local);
  std::vector<unsigned char> got(expected.size(), kUntouched);
  reader.read({tensor.name, tensor.kind, tensor.dtype, tensor.dims, local, got.data()});
  EXPECT_EQ(got, expected) << tensor.name;
}

inline layout::LocalLayout whole(layout::Shape shape) {
  layout::LocalLayout local{.pieces = {}, .size = shape.elements()};
  if (shape.elements() > 0) local.pieces.push_back({{0, shape.rows, 0, shape.cols}, 0, shape.cols});
  return local;
}

// Checks that the checkpoint is complete and correct.
inline void expect_intact(const fs::path& folder, const std::vector<TestTensor>& tensors) {
  const CheckpointReader reader(folder);
  reader.verify();
  EXPECT_EQ(reader.manifest().tensors.size(), tensors.size());
  for (const TestTensor& tensor : tensors) expect_reads(reader, tensor, whole(tensor.shape()));
}

}  // namespace tessera::checkpoint::testing
