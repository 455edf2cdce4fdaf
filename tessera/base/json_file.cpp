#include "tessera/base/json_file.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"

namespace tessera::base {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;
constexpr std::size_t kMaxShown = 80;

std::string read_text(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw InputError("{}: is a folder, expected a JSON file", path.string());
  if (std::filesystem::is_character_file(path, ignored))
    throw InputError("{}: is a device, expected a JSON file", path.string());
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 65536> chunk{};
  while (file && text.size() <= kMaxFileBytes) {
    file.read(chunk.data(), chunk.size());
    text.append(chunk.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (text.size() > kMaxFileBytes)
    throw InputError("{}: has more than {} bytes, expected a smaller JSON file", path.string(), kMaxFileBytes);
  if (!file.eof()) throw InputError("{}: cannot be read: {}", path.string(), std::strerror(errno ? errno : EIO));
  if (text.empty()) throw InputError("{}: is empty, expected JSON", path.string());
  return text;
}

// Reads the events of the parser without building values. Throws InputError for a key that an object has twice, and for
// deep nesting. A callback of Json::parse() could do the same, but then the parser takes quadratic time for an object
// or array with many objects.
class Watch final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Watch(const std::string& where) : where_(where) {}

  bool start_object(std::size_t) override {
    open(true);
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(std::size_t) override {
    open(false);
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(std::string& key) override {
    if (!keys_.back().insert(key).second) throw InputError("{}: key {} is given twice", where_, shown(key));
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(std::int64_t) override { return true; }
  bool number_unsigned(std::uint64_t) override { return true; }
  bool number_float(double, const std::string&) override { return true; }
  bool string(std::string&) override { return true; }
  bool binary(nlohmann::json::binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::json::exception&) override { return false; }

 private:
  void open(bool is_object) {
    if (++depth_ > kMaxJsonDepth)
      throw InputError("{}: nests more than {} levels of arrays and objects, expected fewer", where_, kMaxJsonDepth);
    if (is_object) keys_.emplace_back();
  }

  const std::string& where_;
  int depth_ = 0;
  std::vector<std::set<std::string>> keys_;  // for each object that the parser is in: its keys so far
};

template <typename Json>
Json parse_as(std::string_view text, const std::string& where) {
  Watch watch(where);
  nlohmann::json::sax_parse(text, &watch);
  try {
    return Json::parse(text);  // throws for an error that ended the first pass
  } catch (const nlohmann::json::exception& error) {
    std::string_view reason = error.what();
    if (const auto end = reason.find("] "); end != reason.npos) reason.remove_prefix(end + 2);
    throw InputError("{}: not valid JSON: {}", where, excerpt(reason, 200));
  }
}

// Appends the compact text of a value until the text has more than `kMaxShown` bytes.
void append_shown(std::string& text, const nlohmann::json& value) {
  if (text.size() > kMaxShown) return;
  const auto append_string = [&](const std::string& string) {
    text += nlohmann::json(string.substr(0, kMaxShown))
                .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
  };
  if (value.is_string()) return append_string(value.get_ref<const std::string&>());
  if (!value.is_structured()) {
    text += value.dump();
    return;
  }
  const char* separator = "";
  text += value.is_array() ? '[' : '{';
  for (auto at = value.begin(); at != value.end() && text.size() <= kMaxShown; ++at) {
    text += std::exchange(separator, ",");
    if (value.is_object()) {
      append_string(at.key());
      text += ':';
    }
    append_shown(text, *at);
  }
  text += value.is_array() ? ']' : '}';
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  return parse_as<nlohmann::json>(text, where);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where) {
  return parse_as<nlohmann::ordered_json>(text, where);
}

bool is_json(std::string_view text) {
  return nlohmann::json::accept(text);
}

nlohmann::json read_json_file(const std::filesystem::path& path) {
  return parse_json(read_text(path), path.string());
}

std::string shown(const nlohmann::json& value) {
  std::string text;
  append_shown(text, value);
  if (text.size() > kMaxShown) text = text.substr(0, kMaxShown - 3) + "...";
  return text;
}

}  // namespace tessera::base
