// print_codes encode|decode TYPE, where TYPE is e4m3, e5m2, e2m1 or e8m0. `encode` reads fp32 numbers from stdin and
// writes the code of each as one byte. `decode` reads codes and writes fp32 numbers. tests/tools/test_number_formats.py
// runs it.
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <vector>

#include "tessera/quant/formats/e8m0.h"
#include "tessera/quant/formats/encoding.h"

namespace {

using namespace tessera::quant;

std::uint8_t encode_as(std::string_view type, float value) {
  if (type == "e8m0") return E8M0::encode_up(value);
  return encode(type == "e4m3" ? Element::e4m3 : type == "e5m2" ? Element::e5m2 : Element::e2m1, value);
}

float decode_as(std::string_view type, std::uint8_t code) {
  if (type == "e8m0") return E8M0::decode(code);
  return decode(type == "e4m3" ? Element::e4m3 : type == "e5m2" ? Element::e5m2 : Element::e2m1, code);
}

// Maps all of stdin, one block at a time.
template <typename To, typename From, typename Map>
void convert_stdin(Map map) {
  std::vector<From> from(1 << 16);
  std::vector<To> to;
  while (const std::size_t count = std::fread(from.data(), sizeof(From), from.size(), stdin)) {
    to.clear();
    for (std::size_t i = 0; i < count; ++i) to.push_back(map(from[i]));
    std::fwrite(to.data(), sizeof(To), count, stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view direction = argc == 3 ? argv[1] : "", type = argc == 3 ? argv[2] : "";
  const bool is_type = type == "e4m3" || type == "e5m2" || type == "e2m1" || type == "e8m0";
  if ((direction != "encode" && direction != "decode") || !is_type) {
    std::fputs("expected: print_codes encode|decode e4m3|e5m2|e2m1|e8m0\n", stderr);
    return 2;
  }
  if (direction == "encode")
    convert_stdin<std::uint8_t, float>([&](float value) { return encode_as(type, value); });
  else
    convert_stdin<float, std::uint8_t>([&](std::uint8_t code) { return decode_as(type, code); });
}
