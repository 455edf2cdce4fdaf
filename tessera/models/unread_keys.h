// Keys of a config.json that were probably meant as other keys.
#pragma once
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace tessera::models {

// Returns a warning for each key that is not in `read`, but that resembles an absent key of `read` or is another
// program's name of it. `read` has the names of all keys that the parser of this model looks up. `where` is the name
// of the file.
std::vector<std::string> unread_key_warnings(const nlohmann::json& config, const std::set<std::string>& read,
                                             const std::string& where);

}  // namespace tessera::models
