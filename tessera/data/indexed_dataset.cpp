#include "tessera/data/indexed_dataset.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <string_view>
#include <type_traits>

#include "tessera/base/error.h"

namespace tessera::data {
namespace {

constexpr char kMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr std::int64_t kHeader = 34;  // bytes of the header; the data after it is unaligned
constexpr std::int64_t kStride = 64;  // sequences between two stored stream positions

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Calls body(T{}) with the C++ type of the tokens.
template <typename Body>
decltype(auto) with_type(TokenType type, Body body) {
  switch (type) {
    case TokenType::u8:
      return body(std::uint8_t{});
    case TokenType::i8:
      return body(std::int8_t{});
    case TokenType::i16:
      return body(std::int16_t{});
    case TokenType::i32:
      return body(std::int32_t{});
    case TokenType::i64:
      return body(std::int64_t{});
    case TokenType::f64:
      return body(double{});
    case TokenType::f32:
      return body(float{});
    case TokenType::u16:
      return body(std::uint16_t{});
  }
  throw Error("token type {} has no size", static_cast<int>(type));
}

namespace fs = std::filesystem;

// Returns "; there: FOLDER/train, FOLDER/valid" for an error message, or "" if the folder holds no data sets.
std::string prefixes_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code code;
  for (fs::directory_iterator entry(folder, code), end; !code && entry != end; entry.increment(code))
    if (entry->path().extension() == ".idx") names.push_back(fs::path(entry->path()).replace_extension().string());
  std::ranges::sort(names);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "; there: " : ", ") + name;
  return text;
}

std::string checked_prefix(const std::string& prefix) {
  for (const char* suffix : {".bin", ".idx"})
    if (prefix.size() >= 4 && prefix.compare(prefix.size() - 4, 4, suffix) == 0)
      throw InputError("data prefix '{}': expected it without {} (PREFIX of PREFIX.bin and PREFIX.idx)", prefix,
                       suffix);
  std::error_code ignored;
  if (fs::exists(prefix + ".idx", ignored)) return prefix;
  constexpr std::string_view kExpected = "PREFIX of PREFIX.bin and PREFIX.idx";
  constexpr std::string_view kMaker = "python/prepare_text.py --input";
  if (fs::is_regular_file(prefix, ignored))
    throw InputError("data prefix '{}' is a file, expected {}: {} {} --output FOLDER makes FOLDER/train.bin and .idx",
                     prefix, kExpected, kMaker, prefix);
  if (fs::is_directory(prefix, ignored))
    throw InputError("data prefix '{}' is a folder, expected {}{}", prefix, kExpected, prefixes_in(prefix));
  throw InputError("data prefix '{}': there is no {}.idx, expected {} ({} TEXT --output FOLDER makes them)", prefix,
                   prefix, kExpected, kMaker);
}

// Converts a token to an id. A floating-point token that is negative or not an integer becomes -1. A token of 4.6e18 or
// more, which cannot be an id, becomes 2^62.
template <typename T>
std::int64_t to_id(T token) {
  if constexpr (std::is_floating_point_v<T>) {
    constexpr double huge = 4.6e18;
    if (!(token >= 0) || token != std::floor(token)) return -1;
    return token >= huge ? std::int64_t{1} << 62 : static_cast<std::int64_t>(token);
  } else {
    return static_cast<std::int64_t>(token);
  }
}

// Returns whether all `count` tokens at `at` are ids below `limit`. The loop has no early exit, so that it vectorizes.
template <typename T>
bool all_below(const T* at, std::int64_t count, std::int64_t limit) {
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;  // a negative token becomes larger than T's maximum
    Unsigned largest = 0;
    for (std::int64_t i = 0; i < count; ++i) largest = std::max(largest, static_cast<Unsigned>(at[i]));
    const auto positive = static_cast<std::uint64_t>(std::numeric_limits<T>::max());
    return largest <= positive && static_cast<std::uint64_t>(largest) < static_cast<std::uint64_t>(limit);
  } else {
    bool fine = true;
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t id = to_id(at[i]);
      fine &= id >= 0 && id < limit;
    }
    return fine;
  }
}

}  // namespace

std::size_t size_of(TokenType type) {
  return with_type(type, [](auto zero) { return sizeof zero; });
}

std::string_view name_of(TokenType type) {
  constexpr std::string_view names[] = {"?", "u8", "i8", "i16", "i32", "i64", "f64", "f32", "u16"};
  return names[static_cast<int>(type)];
}

IndexedDataset::IndexedDataset(const std::string& prefix)
    : prefix_(checked_prefix(prefix)), index_(prefix_ + ".idx"), tokens_(prefix_ + ".bin") {
  parse_header();
  check_bounds();
  check_sequences();
}

void IndexedDataset::parse_header() {
  const std::string file = index_.path().string();
  const auto bytes = index_.bytes();
  const auto size = static_cast<std::int64_t>(bytes.size());
  if (size < kHeader) throw InputError("{}: is truncated: {} bytes, expected a header of {}", file, size, kHeader);
  if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
    throw InputError("{}: is not an index of a tokenized data set: expected it to begin with \"MMIDIDX\"", file);
  const auto version = load<std::uint64_t>(bytes.data() + 9);
  if (version != 1) throw InputError("{}: version is {}, expected 1", file, version);
  const auto code = load<std::uint8_t>(bytes.data() + 17);
  if (code < 1 || code > 8) throw InputError("{}: token type code is {}, expected 1 to 8", file, code);
  type_ = static_cast<TokenType>(code);
  const auto sequences = load<std::uint64_t>(bytes.data() + 18), bounds = load<std::uint64_t>(bytes.data() + 26);
  // Compares the counts with the file size first, so that the following products cannot overflow.
  if (sequences > bytes.size() || bounds > bytes.size() ||
      kHeader + static_cast<std::int64_t>(12 * sequences + 8 * bounds) != size)
    throw InputError("{}: has {} bytes, expected 34 + 12 * {} sequences + 8 * {} document bounds: truncated or damaged",
                     file, size, sequences, bounds);
  num_sequences_ = static_cast<std::int64_t>(sequences);
  num_bounds_ = static_cast<std::int64_t>(bounds);
}

void IndexedDataset::check_bounds() const {
  const std::string file = index_.path().string();
  if (num_bounds_ < 1) throw InputError("{}: has no document bounds, expected at least one", file);
  if (bound(0) != 0) throw InputError("{}: document bound 0 is {}, expected 0", file, bound(0));
  for (std::int64_t i = 1; i < num_bounds_; ++i)
    if (bound(i) < bound(i - 1))
      throw InputError("{}: document bound {} is {}, expected at least {} (the one before)", file, i, bound(i),
                       bound(i - 1));
  if (bound(num_bounds_ - 1) != num_sequences_)
    throw InputError("{}: the last document bound is {}, expected {} (the number of sequences)", file,
                     bound(num_bounds_ - 1), num_sequences_);
}

void IndexedDataset::check_sequences() {
  const std::string file = index_.path().string(), bin = tokens_.path().string();
  const auto available = static_cast<std::int64_t>(tokens_.bytes().size());
  const auto item = static_cast<std::int64_t>(size_of(type_));
  std::int64_t furthest = 0;
  begins_.reserve(static_cast<std::size_t>(num_sequences_ / kStride + 2));
  for (std::int64_t s = 0; s < num_sequences_; ++s) {
    if (s % kStride == 0) begins_.push_back(num_tokens_);
    const std::int64_t begin = offset(s), tokens = length(s);
    if (tokens < 0) throw InputError("{}: length of sequence {} is {}, expected 0 or more", file, s, tokens);
    if (begin < 0 || begin % item != 0)
      throw InputError("{}: offset of sequence {} is {}, expected a multiple of {} (tokens are {})", file, s, begin,
                       item, name_of(type_));
    if (begin > available || tokens * item > available - begin)
      throw InputError(
          "{}: has {} bytes, expected at least {} + {} tokens of {} bytes (sequence {} of {}): truncated, or "
          "the file of another index",
          bin, available, begin, tokens, item, s, file);
    furthest = std::max(furthest, begin + tokens * item);
    num_tokens_ += tokens;
  }
  begins_.push_back(num_tokens_);
  if (furthest != available)
    throw InputError("{}: has {} bytes, expected {}, the end of the last sequence of {}: the file of another index",
                     bin, available, furthest, file);
}

std::uint64_t IndexedDataset::index_hash() const {
  return XXH64(index_.bytes().data(), index_.bytes().size(), 0);
}

std::int64_t IndexedDataset::length(std::int64_t sequence) const {
  return load<std::int32_t>(index_.bytes().data() + kHeader + 4 * sequence);
}
std::int64_t IndexedDataset::offset(std::int64_t sequence) const {
  return load<std::int64_t>(index_.bytes().data() + kHeader + 4 * num_sequences_ + 8 * sequence);
}
std::int64_t IndexedDataset::bound(std::int64_t index) const {
  return load<std::int64_t>(index_.bytes().data() + kHeader + 12 * num_sequences_ + 8 * index);
}

IndexedDataset::Place IndexedDataset::find(std::int64_t token) const {
  const auto after = std::upper_bound(begins_.begin(), begins_.end() - 1, token);
  const auto block = static_cast<std::int64_t>(after - begins_.begin()) - 1;
  Place place{.sequence = block * kStride, .begin = begins_[static_cast<std::size_t>(block)]};
  while (place.begin + length(place.sequence) <= token) place.begin += length(place.sequence++);
  return place;
}

template <typename Visit>
void IndexedDataset::for_each_piece(std::int64_t first, std::int64_t count, Visit visit) const {
  TESSERA_CHECK(first >= 0 && count >= 0 && first <= num_tokens_ - count,
                "requested {} tokens from {} of '{}', which has {}", count, first, prefix_, num_tokens_);
  if (count == 0) return;
  const auto item = static_cast<std::int64_t>(size_of(type_));
  for (Place at = find(first); count > 0; at.begin += length(at.sequence++)) {
    const std::int64_t skipped = first - at.begin, tokens = std::min(count, length(at.sequence) - skipped);
    if (tokens > 0) visit(tokens_.bytes().data() + offset(at.sequence) + skipped * item, tokens);
    first += tokens;
    count -= tokens;
  }
}

void IndexedDataset::read(std::int64_t first, std::int64_t count, std::int64_t* tokens) const {
  with_type(type_, [&](auto zero) {
    using T = decltype(zero);
    for_each_piece(first, count, [&](const std::byte* bytes, std::int64_t length) {
      const T* from = reinterpret_cast<const T*>(bytes);  // offsets are multiples of the token's size
      tokens = std::transform(from, from + length, tokens, to_id<T>);
    });
  });
}

std::vector<std::int64_t> IndexedDataset::document_starts(std::int64_t first, std::int64_t last) const {
  TESSERA_CHECK(first >= 0 && first <= last && last <= num_tokens_, "requested tokens [{}, {}) of '{}', which has {}",
                first, last, prefix_, num_tokens_);
  std::vector<std::int64_t> starts;
  if (first == last) return starts;
  // Finds the first document bound at or after the sequence that contains `first`. Empty sequences directly before that
  // sequence are included.
  Place at = find(first);
  while (at.sequence > 0 && length(at.sequence - 1) == 0) --at.sequence;
  std::int64_t low = 0, high = num_bounds_;
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (bound(middle) < at.sequence)
      low = middle + 1;
    else
      high = middle;
  }
  for (std::int64_t i = low; i < num_bounds_ - 1; ++i) {
    while (at.sequence < bound(i)) at.begin += length(at.sequence++);
    if (at.begin >= last) break;
    std::int64_t end = at.begin;  // end of document i, computed until it is known to be non-empty
    for (std::int64_t s = bound(i); s < bound(i + 1) && end == at.begin; ++s) end += length(s);
    if (end > at.begin && at.begin >= first) starts.push_back(at.begin);
  }
  return starts;
}

void IndexedDataset::check_vocabulary(std::int64_t vocab_size, std::int64_t part, std::int64_t parts) const {
  TESSERA_CHECK(parts > 0 && part >= 0 && part < parts, "requested part {} of {}", part, parts);
  const std::int64_t share = num_tokens_ / parts, rest = num_tokens_ % parts;
  const std::int64_t first = part * share + std::min(part, rest), count = share + (part < rest ? 1 : 0);
  with_type(type_, [&](auto zero) {
    using T = decltype(zero);
    for_each_piece(first, count, [&](const std::byte* bytes, std::int64_t length) {
      const T* from = reinterpret_cast<const T*>(bytes);
      if (all_below(from, length, vocab_size)) return;
      const T* bad = std::find_if(from, from + length, [&](T token) {
        const std::int64_t id = to_id(token);
        return id < 0 || id >= vocab_size;
      });
      throw InputError("{}: token at byte {} is {}, expected 0 to {} (vocab_size {})", tokens_.path().string(),
                       reinterpret_cast<const std::byte*>(bad) - tokens_.bytes().data(), +*bad, vocab_size - 1,
                       vocab_size);
    });
  });
}

}  // namespace tessera::data
