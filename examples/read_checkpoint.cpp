// Reads a sharded checkpoint on another mesh: each of RANKS ranks reads its own rows of every weight, with any RANKS
// and any mesh of the run that wrote the checkpoint. Finally checks the parts against the whole tensors.
//
//   read_checkpoint FOLDER RANKS       FOLDER: a checkpoint, or a run (its latest checkpoint)
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/layout/layout.h"

namespace {

using namespace tessera;

// Rank `rank` of `ranks` holds an even part of the rows. With more ranks than rows, some ranks hold nothing.
layout::LocalLayout rows_of_rank(layout::Shape shape, int rank, int ranks) {
  std::vector<std::vector<layout::Range>> parts;
  for (int r = 0; r < ranks; ++r) parts.push_back({layout::even_part(shape.rows, r, ranks)});
  return layout::rows_by_rank(shape, parts).ranks[static_cast<std::size_t>(rank)];
}

// Returns the bytes of the part of `stored` that `local` describes.
std::vector<std::byte> read(const checkpoint::CheckpointReader& reader, const checkpoint::StoredTensor& stored,
                            const layout::LocalLayout& local) {
  std::vector<std::byte> data(static_cast<std::size_t>(local.size) * quant::size_of(stored.dtype));
  reader.read({.name = stored.name,
               .kind = stored.kind,
               .dtype = stored.dtype,
               .dims = stored.dims,
               .local = local,
               .data = data.data()});
  return data;
}

// Returns whether the rows of all ranks, one after the other, are the whole tensor.
bool reads_equal_bytes(const checkpoint::CheckpointReader& reader, const checkpoint::StoredTensor& stored, int ranks) {
  const layout::Shape shape = layout::matrix_shape(stored.dims);
  const std::vector<std::byte> whole = read(reader, stored, layout::replicated(shape, 1).ranks.front());
  std::size_t begin = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<std::byte> part = read(reader, stored, rows_of_rank(shape, rank, ranks));
    if (begin + part.size() > whole.size()) return false;
    if (!part.empty() && std::memcmp(part.data(), whole.data() + begin, part.size()) != 0) return false;
    begin += part.size();
  }
  return begin == whole.size();
}

int read_all(const std::string& folder, int ranks) {
  const checkpoint::CheckpointReader reader(checkpoint::resolve_checkpoint(folder));
  std::int64_t pieces = 0, weights = 0, different = 0;
  for (const checkpoint::StoredTensor& stored : reader.manifest().tensors) {
    if (stored.kind != checkpoint::Kind::weight) continue;
    weights += 1;
    pieces += static_cast<std::int64_t>(stored.pieces.size());
    if (reads_equal_bytes(reader, stored, ranks)) continue;
    std::printf("%s: the parts of %d ranks differ from the whole tensor\n", stored.name.c_str(), ranks);
    different += 1;
  }
  std::printf("step %lld: %lld weights, stored in %lld pieces, read by %d ranks, %lld differ\n",
              static_cast<long long>(reader.step()), static_cast<long long>(weights), static_cast<long long>(pieces),
              ranks, static_cast<long long>(different));
  return different == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc == 3 ? std::atoi(argv[2]) : 0;
  if (ranks < 1) return std::fprintf(stderr, "usage: read_checkpoint FOLDER RANKS\n"), 2;
  try {
    return read_all(argv[1], ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "read_checkpoint: %s\n", error.what());
    return dynamic_cast<const InputError*>(&error) != nullptr ? 2 : 1;
  }
}
