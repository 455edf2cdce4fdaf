#include "tessera/base/json_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/printable.h"

namespace tessera::base {
namespace {

std::string read_text(const std::filesystem::path& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw InputError("{}: is a folder, expected a JSON file", path.string());
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  const bool empty_file = file && text.str().empty();
  if (empty_file) throw InputError("{}: is empty, expected JSON", path.string());
  if (!file || !text) throw InputError("{}: cannot be read: {}", path.string(), std::strerror(errno ? errno : EIO));
  return text.str();
}

}  // namespace

nlohmann::json read_json_file(const std::filesystem::path& path) {
  using json = nlohmann::json;
  const std::string text = read_text(path);
  std::vector<std::set<std::string>> open_objects;
  const json::parser_callback_t watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) open_objects.emplace_back();
    if (event == json::parse_event_t::object_end) open_objects.pop_back();
    if (event == json::parse_event_t::key && !open_objects.back().insert(parsed.get<std::string>()).second)
      throw InputError("{}: key {} is given twice", path.string(), shown(parsed));
    return true;
  };
  try {
    return json::parse(text, watch);
  } catch (const json::exception& error) {
    std::string reason = error.what();
    if (const auto end = reason.find("] "); end != std::string::npos) reason.erase(0, end + 2);
    throw InputError("{}: not valid JSON: {}", path.string(), printable(reason));
  }
}

std::string shown(const nlohmann::json& value) {
  constexpr std::size_t limit = 80;
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > limit) text = text.substr(0, limit - 3) + "...";
  return text;
}

}  // namespace tessera::base
