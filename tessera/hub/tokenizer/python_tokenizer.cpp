#include "tessera/hub/tokenizer/python_tokenizer.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/text/printable.h"
#include "tessera/hub/tokenizer/child_process.h"

namespace tessera::hub {
namespace {

using nlohmann::json;

constexpr int kNoPackage = 77;
// A Python script that reads one request and writes one answer, both as JSON. Its argument is the tokenizer's file,
// whose path may contain bytes that are not UTF-8. It does not import modules of the current folder. The package may
// panic on a damaged file. A panic is not an Exception, and prints many lines.
constexpr const char* kScript = R"(
import sys
sys.path = [folder for folder in sys.path if folder]
import json
import os
try:
    import tokenizers
except ImportError:
    sys.exit(77)
request = json.load(sys.stdin.buffer)
os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
try:
    with open(sys.argv[1], "rb") as file:
        tokenizer = tokenizers.Tokenizer.from_buffer(file.read())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if "text" in request:
        encoding = tokenizer.encode(request["text"])
        ids, begin = encoding.ids, request.get("begin")
        if begin is not None:
            mask = encoding.special_tokens_mask + [0]  # 1 for the ids that the tokenizer adds
            ids = begin + ids[mask.index(0):]
        answer = {"ids": ids}
    else:
        answer = {"texts": [tokenizer.decode(ids, skip_special_tokens=False) for ids in request["lists"]]}
except BaseException as error:
    answer = {"error": str(error)}
json.dump(answer, sys.stdout)
)";

// Returns the output as a JSON object, or nullopt if it is not one.
std::optional<json> object_in(const std::string& output) {
  try {
    json answer = base::parse_json(output, "the output");
    if (answer.is_object()) return answer;
  } catch (const InputError&) {
  }
  return std::nullopt;
}

// Returns the answer of the first interpreter that has the package.
std::optional<json> call_python(const std::vector<std::string>& pythons, const json& request, const std::string& file) {
  for (const std::string& python : pythons) {
    const ChildResult child = run_child({python, "-c", kScript, file}, request.dump());
    if (!child.started || child.code == kNoPackage) continue;
    std::optional<json> answer = object_in(child.output);
    if (child.code != 0 || !answer)
      throw Error("{}: the process that reads {} ended with code {}", python, file, child.code);
    if (answer->contains("error"))
      throw InputError("{}: {}, expected a tokenizer of the Python package tokenizers", file,
                       base::excerpt(answer->at("error").get<std::string>(), 200));
    return answer;
  }
  return std::nullopt;
}

}  // namespace

PythonTokenizer::PythonTokenizer(std::filesystem::path file, std::vector<std::string> pythons)
    : file_(std::move(file)), pythons_(std::move(pythons)) {}

std::optional<std::vector<std::int64_t>> PythonTokenizer::encode(const std::string& text, const BeginIds& begin) const {
  json request = {{"text", text}};
  if (begin) request["begin"] = *begin;
  const auto answer = call_python(pythons_, request, file_.string());
  if (!answer) return std::nullopt;
  return answer->at("ids").get<std::vector<std::int64_t>>();
}

std::optional<std::vector<std::string>> PythonTokenizer::decode(
    const std::vector<std::vector<std::int64_t>>& lists) const {
  const auto answer = call_python(pythons_, {{"lists", lists}}, file_.string());
  if (!answer) return std::nullopt;
  return answer->at("texts").get<std::vector<std::string>>();
}

std::vector<std::string> pythons_to_try(const std::optional<std::string>& chosen, const std::string& own) {
  if (chosen) return {*chosen};
  return {own, "python3"};
}

}  // namespace tessera::hub
