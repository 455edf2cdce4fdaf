#include "tessera/hub/tokenizer/begin_ids.h"

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/hub/tokenizer/tokenizer_files.h"

namespace tessera::hub {

using nlohmann::json;

BeginIds begin_ids_in(const json& stored, const std::filesystem::path& where) {
  if (!stored.is_object() || !stored.contains(kBeginIds)) return std::nullopt;
  const json& ids = stored[kBeginIds];
  bool are_ids = ids.is_array();
  for (const json& id : ids) are_ids = are_ids && id.is_number_unsigned();
  if (!are_ids)
    throw InputError("{}: {}: got {}, expected a list of token ids", where.string(), kBeginIds, base::shown(ids));
  return ids.get<std::vector<std::int64_t>>();
}

BeginIds begin_ids_beside(const std::string& prefix) {
  const std::filesystem::path file = folder_of_prefix(prefix) / "meta.json";
  json meta;
  try {
    meta = base::read_json_file(file);
  } catch (const InputError&) {
    return std::nullopt;
  }
  return begin_ids_in(meta, file);
}

BeginIds begin_ids_of_data(const std::vector<std::string>& blend) {
  BeginIds all;
  for (const std::string& prefix : prefixes_in(blend)) {
    const BeginIds ids = begin_ids_beside(prefix);
    if (!ids || (all && *ids != *all)) return std::nullopt;
    all = ids;
  }
  return all;
}

}  // namespace tessera::hub
