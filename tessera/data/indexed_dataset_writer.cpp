#include <bit>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/data/indexed_dataset.h"

namespace tessera::data {
namespace {
static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::size_t kFlushBytes = std::size_t{1} << 22;
constexpr char kPartial[] = ".partial";

template <typename T>
void put(std::vector<std::byte>& to, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  to.insert(to.end(), bytes, bytes + sizeof value);
}

template <typename T>
void put_token(std::vector<std::byte>& to, std::int64_t token) {
  const T stored = static_cast<T>(token);
  if constexpr (std::is_integral_v<T>) {
    if (std::cmp_less(token, std::numeric_limits<T>::min()) || std::cmp_greater(token, std::numeric_limits<T>::max()))
      throw Error("token {} does not fit the data set's type ({} bytes)", token, sizeof(T));
  } else if (token != static_cast<std::int64_t>(stored) || std::fabs(stored) > 9e15) {
    throw Error("token {} does not fit the data set's floating type", token);
  }
  put(to, stored);
}

void put_token(std::vector<std::byte>& to, TokenType type, std::int64_t token) {
  switch (type) {
    case TokenType::u8:
      return put_token<std::uint8_t>(to, token);
    case TokenType::i8:
      return put_token<std::int8_t>(to, token);
    case TokenType::i16:
      return put_token<std::int16_t>(to, token);
    case TokenType::i32:
      return put_token<std::int32_t>(to, token);
    case TokenType::i64:
      return put_token<std::int64_t>(to, token);
    case TokenType::f64:
      return put_token<double>(to, token);
    case TokenType::f32:
      return put_token<float>(to, token);
    case TokenType::u16:
      return put_token<std::uint16_t>(to, token);
  }
}

}  // namespace

IndexedDatasetWriter::IndexedDatasetWriter(std::string prefix, TokenType type)
    : prefix_(std::move(prefix)), type_(type) {
  append(prefix_ + ".bin" + kPartial, {}, true);
}

IndexedDatasetWriter::~IndexedDatasetWriter() {
  if (finished_) return;
  std::error_code ignored;
  for (const char* suffix : {".bin", ".idx"}) std::filesystem::remove(prefix_ + suffix + kPartial, ignored);
}

void IndexedDatasetWriter::append(const std::filesystem::path& path, const std::vector<std::byte>& bytes,
                                  bool truncate) const {
  errno = 0;
  std::ofstream file(path, std::ios::binary | (truncate ? std::ios::trunc : std::ios::app));
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw Error("{}: cannot be written: {}", path.string(), std::strerror(errno ? errno : EIO));
}

void IndexedDatasetWriter::flush() {
  append(prefix_ + ".bin" + kPartial, pending_, false);
  pending_.clear();
}

void IndexedDatasetWriter::add_sequence(const std::vector<std::int64_t>& tokens) {
  TESSERA_CHECK(!finished_, "data set '{}' is finished", prefix_);
  if (tokens.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max()))
    throw Error("data set '{}': a sequence of {} tokens, expected at most 2147483647", prefix_, tokens.size());
  const std::size_t before = pending_.size();
  for (const std::int64_t token : tokens) put_token(pending_, type_, token);
  lengths_.push_back(static_cast<std::int32_t>(tokens.size()));
  offsets_.push_back(bytes_);
  bytes_ += static_cast<std::int64_t>(pending_.size() - before);
  if (pending_.size() >= kFlushBytes) flush();
}

void IndexedDatasetWriter::end_document() {
  documents_.push_back(static_cast<std::int64_t>(lengths_.size()));
}

void IndexedDatasetWriter::finish() {
  TESSERA_CHECK(!finished_, "data set '{}' is finished", prefix_);
  if (documents_.back() != static_cast<std::int64_t>(lengths_.size())) end_document();
  flush();
  std::vector<std::byte> index;
  for (const char c : {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'}) put(index, c);
  put(index, std::uint64_t{1});
  put(index, static_cast<std::uint8_t>(type_));
  put(index, static_cast<std::uint64_t>(lengths_.size()));
  put(index, static_cast<std::uint64_t>(documents_.size()));
  for (const std::int32_t length : lengths_) put(index, length);
  for (const std::int64_t offset : offsets_) put(index, offset);
  for (const std::int64_t document : documents_) put(index, document);
  append(prefix_ + ".idx" + kPartial, index, true);
  for (const char* suffix : {".bin", ".idx"}) std::filesystem::rename(prefix_ + suffix + kPartial, prefix_ + suffix);
  finished_ = true;
}

}  // namespace tessera::data
