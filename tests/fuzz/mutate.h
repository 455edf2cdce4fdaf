// Makes mutated inputs for readers of files. The mutations know the structure of the input: they replace numbers by
// extreme values, nest, duplicate keys and cut the text.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::fuzz {

// Pseudo-random numbers (splitmix64). Equal seeds give equal numbers on every machine.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next();
  // Returns a number below `count`, which must be at least 1.
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(next() % count); }
  bool one_in(std::size_t count) { return below(count) == 0; }
  template <typename T>
  const T& one_of(const std::vector<T>& values) {
    return values[below(values.size())];
  }

 private:
  std::uint64_t state_;
};

// Changes, inserts, removes, copies or cuts bytes.
std::string mutated_bytes(std::string text, Random& random);
// Changes a JSON text. Most results are valid JSON with other values; some are not valid.
std::string mutated_json(std::string text, Random& random);
// Changes the numbers of a binary file, which begin at multiples of `unit` after the first `header` bytes.
std::string mutated_fields(std::string text, std::size_t header, std::size_t unit, Random& random);
// Changes the header of a safetensors file, or its bytes.
std::string mutated_safetensors(const std::string& text, Random& random);

}  // namespace tessera::fuzz
