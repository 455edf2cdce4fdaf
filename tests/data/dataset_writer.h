// Writes a data set in Megatron's indexed format (tessera/data/indexed_dataset.h).
#pragma once
#include <fstream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/data/indexed_dataset.h"

namespace tessera::data {

// The caller passes the sequences of each document to add_sequence, then calls end_document. finish() writes the files.
class IndexedDatasetWriter {
 public:
  IndexedDatasetWriter(std::string prefix, TokenType type) : prefix_(std::move(prefix)), type_(type) {}

  // Every token must fit the type.
  void add_sequence(const std::vector<std::int64_t>& tokens) {
    lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
    offsets_.push_back(static_cast<std::int64_t>(tokens_.size()));
    for (const std::int64_t token : tokens) put_token(token);
  }
  void end_document() { documents_.push_back(static_cast<std::int64_t>(lengths_.size())); }
  // Also ends an open document.
  void finish() {
    if (documents_.back() != static_cast<std::int64_t>(lengths_.size())) end_document();
    std::string index("MMIDIDX\0\0", 9);
    put<std::uint64_t>({1}, index);
    put<std::uint8_t>({static_cast<std::uint8_t>(type_)}, index);
    put<std::uint64_t>({lengths_.size(), documents_.size()}, index);
    put<std::int32_t>(lengths_, index);
    put<std::int64_t>(offsets_, index);
    put<std::int64_t>(documents_, index);
    std::ofstream(prefix_ + ".bin", std::ios::binary) << tokens_;
    std::ofstream(prefix_ + ".idx", std::ios::binary) << index;
  }

 private:
  template <typename T>
  static void put(const std::vector<T>& values, std::string& to) {
    to.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
  }
  void put_token(std::int64_t token) {
    switch (type_) {
      case TokenType::f64:
        return put<double>({static_cast<double>(token)}, tokens_);
      case TokenType::f32:
        return put<float>({static_cast<float>(token)}, tokens_);
      default:  // little-endian: the first bytes of a wider integer
        tokens_.append(reinterpret_cast<const char*>(&token), size_of(type_));
    }
  }

  std::string prefix_, tokens_;
  TokenType type_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> offsets_, documents_{0};
};

}  // namespace tessera::data
