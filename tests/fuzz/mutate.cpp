#include "tests/fuzz/mutate.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace tessera::fuzz {
namespace {

const std::vector<std::string>& extreme_numbers() {
  static const std::vector<std::string> numbers{"0",
                                                "1",
                                                "2",
                                                "-1",
                                                "-0.0",
                                                "0.5",
                                                "7",
                                                "101",
                                                "1023",
                                                "1025",
                                                "65537",
                                                "1048576",
                                                "1048577",
                                                "300000000",
                                                "2147483647",
                                                "2147483648",
                                                "-2147483648",
                                                "4294967296",
                                                "4611686018427387904",
                                                "9007199254740993",
                                                "9223372036854775807",
                                                "9223372036854775808",
                                                "-9223372036854775808",
                                                "18446744073709551615",
                                                "18446744073709551616",
                                                "1e18",
                                                "1e308",
                                                "-1e308",
                                                "1e-320",
                                                "16384",
                                                "10000",
                                                "64",
                                                "1e999"};
  return numbers;
}

std::string nested(std::size_t depth, Random& random) {
  const bool is_object = random.one_in(2);
  std::string open, close;
  for (std::size_t i = 0; i < depth; ++i) open += is_object ? "{\"a\":" : "[", close += is_object ? "}" : "]";
  return open + (random.one_in(8) ? "" : "1") + (random.one_in(8) ? "" : close);
}

std::string other_value(Random& random) {
  static const std::vector<std::string> values{
      "null",      "true",     "false",       "[]",           "{}",           "\"\"",     "\"x\"",         "[1,2,3]",
      "{\"a\":1}", "[[]]",     "\"\\u0000\"", "\"a\\nb\"",    "\"\\ud800\"",  "\"\xff\"", "\"../../etc\"", "NaN",
      "\"NaN\"",   "\"auto\"", "[{}]",        "[[1,-1,2,3]]", "\"\xc3\xa9\"", "\"0\"",    "\"-1\"",        "\"dp0:1\""};
  static const std::vector<std::size_t> depths{2, 5, 98, 99, 100, 101, 102, 1000};
  if (random.one_in(100)) return nested(100'000, random);
  if (random.one_in(10)) return nested(random.one_of(depths), random);
  if (random.one_in(12)) return "\"" + std::string(1 + random.below(random.one_in(20) ? 100'000 : 300), 'y') + "\"";
  if (random.one_in(20)) return std::string(1 + random.below(400), '9');
  return random.one_in(2) ? random.one_of(values) : random.one_of(extreme_numbers());
}

// A part of a JSON text: a string, a number or a word, or one other character.
struct Token {
  std::size_t begin, end;
  char kind;  // the first character; '0' for numbers, 'a' for words
};

bool is_in_number(char c) {
  return (c >= '0' && c <= '9') || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-';
}

std::vector<Token> tokens_of(const std::string& text) {
  std::vector<Token> tokens;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t begin = at;
    char kind = text[at];
    if (kind == '"') {
      for (++at; at < text.size() && text[at] != '"'; ++at)
        if (text[at] == '\\') ++at;
      at = std::min(at + 1, text.size());
    } else if (is_in_number(kind) && kind != 'e' && kind != 'E') {
      kind = '0';
      while (at < text.size() && is_in_number(text[at])) ++at;
    } else if (kind >= 'a' && kind <= 'z') {
      kind = 'a';
      while (at < text.size() && text[at] >= 'a' && text[at] <= 'z') ++at;
    } else {
      ++at;
    }
    if (kind != ' ' && kind != '\n') tokens.push_back({begin, at, kind});
  }
  return tokens;
}

// Returns the end of the value that begins at token `first`.
std::size_t end_of_value(const std::vector<Token>& tokens, std::size_t first) {
  std::size_t depth = 0;
  for (std::size_t at = first; at < tokens.size(); ++at) {
    const char kind = tokens[at].kind;
    if (kind == '{' || kind == '[') ++depth;
    if ((kind == '}' || kind == ']') && depth > 0) --depth;
    if (depth == 0) return tokens[at].end;
  }
  return tokens.back().end;
}

bool begins_value(const Token& token) {
  return token.kind == '"' || token.kind == '0' || token.kind == 'a' || token.kind == '{' || token.kind == '[';
}

struct Span {
  std::size_t begin = 0, end = 0;
  std::string of(const std::string& text) const { return text.substr(begin, end - begin); }
};

// Returns a random value of the text, or a key.
Span random_value(const std::vector<Token>& tokens, Random& random) {
  std::size_t at = random.below(tokens.size());
  for (std::size_t tries = 0; tries < tokens.size() && !begins_value(tokens[at]); ++tries)
    at = (at + 1) % tokens.size();
  return {tokens[at].begin, end_of_value(tokens, at)};
}

// Returns a member of an object, from its key to the end of its value. The span is empty if there is no member.
Span random_member(const std::vector<Token>& tokens, Random& random) {
  const std::size_t first = random.below(tokens.size());
  for (std::size_t tries = 0; tries < tokens.size(); ++tries) {
    const std::size_t at = (first + tries) % tokens.size();
    if (tokens[at].kind == '"' && at + 2 < tokens.size() && tokens[at + 1].kind == ':')
      return {tokens[at].begin, end_of_value(tokens, at + 2)};
  }
  return {};
}

Span random_number(const std::vector<Token>& tokens, Random& random) {
  const std::size_t first = random.below(tokens.size());
  for (std::size_t tries = 0; tries < tokens.size(); ++tries)
    if (const Token& token = tokens[(first + tries) % tokens.size()]; token.kind == '0')
      return {token.begin, token.end};
  return {};
}

void replace(std::string& text, const Span& span, const std::string& with) {
  text.replace(span.begin, span.end - span.begin, with);
}

void change_json(std::string& text, Random& random) {
  const std::vector<Token> tokens = tokens_of(text);
  if (tokens.empty()) {
    text = other_value(random);
    return;
  }
  switch (random.below(12)) {
    case 0:
    case 1:
    case 2:
    case 8:
    case 9:
    case 10:
      return replace(text, random_number(tokens, random), random.one_of(extreme_numbers()));
    case 3:
      return replace(text, random_value(tokens, random), other_value(random));
    case 4: {  // a key that is given twice
      const std::string member = random_member(tokens, random).of(text);
      if (const std::size_t at = random_member(tokens, random).begin; !member.empty()) text.insert(at, member + ",");
      return;
    }
    case 5: {  // a member less; the comma remains in some cases
      Span member = random_member(tokens, random);
      if (member.end < text.size() && text[member.end] == ',') ++member.end;
      return replace(text, member, "");
    }
    case 6: {
      const std::string value = random_value(tokens, random).of(text);
      return replace(text, random_value(tokens, random), value);
    }
    case 7: {  // a long array
      const Span value = random_value(tokens, random);
      const std::size_t times = 1 + random.below(random.one_in(50) ? 5000 : 20);
      std::string many = value.of(text);
      if (many.size() > 200) many = "0";
      std::string list = "[" + many;
      for (std::size_t i = 0; i < times; ++i) list += "," + many;
      return replace(text, value, list + "]");
    }
    default:
      text = mutated_bytes(std::move(text), random);
  }
}

template <typename T>
void put(std::string& text, std::size_t at, T value) {
  if (at + sizeof value <= text.size()) std::memcpy(text.data() + at, &value, sizeof value);
}

std::uint64_t extreme_bits(Random& random) {
  static const std::vector<std::uint64_t> values{0,
                                                 1,
                                                 2,
                                                 7,
                                                 0x7FFFFFFF,
                                                 0x80000000,
                                                 0xFFFFFFFF,
                                                 0x100000000,
                                                 0x1FFFFFFFFFFFFFFF,
                                                 0x2000000000000000,
                                                 0x7FFFFFFFFFFFFFFF,
                                                 0x8000000000000000,
                                                 0xFFFFFFFFFFFFFFFF,
                                                 0xFFFFFFFFFFFFFFFE};
  return random.one_in(4) ? random.next() : random.one_of(values) + random.below(3);
}

}  // namespace

std::uint64_t Random::next() {
  state_ += 0x9E3779B97F4A7C15;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

std::string mutated_bytes(std::string text, Random& random) {
  static const std::vector<std::string> pieces{
      "\xff", "\x80", std::string(1, '\0'), "\xc3", "\xf4\x90\x80\x80", "\n", "\"", "\\", "{", "[", "}", "]", ",", ":",
      "-",    "9",    "\xef\xbb\xbf",       "//"};
  if (text.empty()) return random.one_of(pieces);
  const std::size_t at = random.below(text.size()),
                    length = 1 + random.below(std::min<std::size_t>(8, text.size() - at));
  switch (random.below(7)) {
    case 0:
      text[at] = static_cast<char>(random.next());
      break;
    case 1:
      text[at] = static_cast<char>(text[at] ^ (1 << random.below(8)));
      break;
    case 2:
      text.insert(at, random.one_of(pieces));
      break;
    case 3:
      text.erase(at, length);
      break;
    case 4:
      text.resize(at);
      break;
    case 5:
      text.insert(random.below(text.size()), text.substr(at, random.below(text.size() - at) % 4096));
      break;
    default:
      text.erase(at, random.below(text.size() - at + 1));
  }
  return text;
}

std::string mutated_json(std::string text, Random& random) {
  do change_json(text, random);
  while (random.one_in(3));
  return text;
}

std::string mutated_fields(std::string text, std::size_t header, std::size_t unit, Random& random) {
  for (std::size_t changes = 1 + random.below(3); changes > 0; --changes) {
    if (random.one_in(4) || text.size() <= header) {
      text = mutated_bytes(std::move(text), random);
      continue;
    }
    const std::size_t at = header + random.below((text.size() - header) / unit + 1) * unit;
    if (random.one_in(2))
      put(text, at, extreme_bits(random));
    else
      put(text, at, static_cast<std::uint32_t>(extreme_bits(random)));
  }
  return text;
}

std::string mutated_safetensors(const std::string& text, Random& random) {
  std::uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof length);
  if (random.one_in(6)) return mutated_fields(text, 0, sizeof length, random);
  std::string header = mutated_json(text.substr(sizeof length, length), random);
  std::string file(sizeof length, '\0');
  put(file, 0, random.one_in(20) ? extreme_bits(random) : header.size());
  file += header;
  if (!random.one_in(20)) file += text.substr(sizeof length + length);
  return file;
}

}  // namespace tessera::fuzz
