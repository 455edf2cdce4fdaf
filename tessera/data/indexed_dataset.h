// Tokenized text in Megatron's indexed format, PREFIX.idx and PREFIX.bin, as one stream of tokens.
//
// PREFIX.idx, little-endian: "MMIDIDX\0\0", u64 version 1, u8 token type, u64 sequences S, u64 document bounds D, then
// i32 lengths[S] (tokens), i64 offsets[S] (bytes in PREFIX.bin), i64 documents[D]. Document i consists of the sequences
// [documents[i], documents[i + 1]); the first bound is 0 and the last is S. PREFIX.bin holds the tokens; the offsets
// may be in any order.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/data_file.h"

namespace tessera::data {

// Token type codes of the file format.
enum class TokenType : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, f64 = 6, f32 = 7, u16 = 8 };
std::size_t size_of(TokenType type);       // bytes of one token
std::string_view name_of(TokenType type);  // "u16"

// Immutable after construction; several threads may call const members at once. The stream is the sequences in the
// order of PREFIX.idx, concatenated without separators.
class IndexedDataset {
 public:
  // Opens the files and checks everything except token values; reads PREFIX.idx once. Throws InputError for: a file
  // that is missing, truncated, too long or in another format; lengths, offsets or document bounds that contradict each
  // other or PREFIX.bin. The message names the file, the value found and the expected value.
  explicit IndexedDataset(const std::string& prefix);

  const std::string& prefix() const { return prefix_; }
  TokenType token_type() const { return type_; }
  std::int64_t num_tokens() const { return num_tokens_; }
  std::int64_t num_sequences() const { return num_sequences_; }
  std::int64_t num_documents() const { return num_bounds_ - 1; }
  std::uint64_t index_hash() const;  // XXH64 of PREFIX.idx

  // Copies tokens [first, first + count) of the stream to `tokens`. Throws Error if the range is outside the stream.
  void read(std::int64_t first, std::int64_t count, std::int64_t* tokens) const;

  // Returns the positions in [first, last) of the stream at which a document begins, ascending. Empty documents are
  // skipped.
  std::vector<std::int64_t> document_starts(std::int64_t first, std::int64_t last) const;

  // Reads part `part` of `parts` of the stream at memory speed. Throws InputError, which names the file, byte offset
  // and token, if a token is negative, not an integer, or at least vocab_size. All parts together cover every token.
  void check_vocabulary(std::int64_t vocab_size, std::int64_t part = 0, std::int64_t parts = 1) const;

 private:
  // A sequence and the number of tokens of the stream before this sequence.
  struct Place {
    std::int64_t sequence, begin;
  };
  void parse_header();
  void check_bounds() const;
  void check_sequences();
  Place find(std::int64_t token) const;  // the sequence that contains the token
  std::int64_t length(std::int64_t sequence) const;
  std::int64_t offset(std::int64_t sequence) const;
  std::int64_t bound(std::int64_t index) const;
  // Calls visit(pointer to the bytes of the first token, number of tokens) for each contiguous piece of [first, first +
  // count), in order.
  template <typename Visit>
  void for_each_piece(std::int64_t first, std::int64_t count, Visit visit) const;

  std::string prefix_;
  MappedFile index_, tokens_;
  TokenType type_ = TokenType::u8;
  std::int64_t num_sequences_ = 0, num_bounds_ = 0, num_tokens_ = 0;
  std::vector<std::int64_t> begins_;  // stream positions of every kStride-th sequence and of the end
};

}  // namespace tessera::data
