#include "tessera/schedule/check/order_text.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"

namespace tessera::schedule {

std::string to_text(const CallOrder& order) {
  nlohmann::json calls = nlohmann::json::array();
  for (const CollectiveCall& call : order.calls)
    calls.push_back(nlohmann::json::array({call.role, call.what, call.bytes}));
  return nlohmann::json{{"roles", order.roles}, {"calls", std::move(calls)}}.dump();
}

CallOrder call_order_of(const std::string& text) {
  try {
    const nlohmann::json json = base::parse_json(text, "the text");
    CallOrder order{.roles = json.at("roles").get<std::vector<std::string>>(), .calls = {}};
    for (const nlohmann::json& call : json.at("calls"))
      order.calls.push_back({call.at(0).get<int>(), call.at(1).get<std::string>(), call.at(2).get<std::int64_t>()});
    for (const CollectiveCall& call : order.calls)
      TESSERA_CHECK(call.role >= 0 && static_cast<std::size_t>(call.role) < order.roles.size(),
                    "a call order uses role {}, but there are {}", call.role, order.roles.size());
    return order;
  } catch (const InputError& error) {
    throw Error("the text is not a call order: {}", error.what());  // another rank sent the text
  } catch (const nlohmann::json::exception& error) {
    throw Error("the text is not a call order: {}", error.what());
  }
}

}  // namespace tessera::schedule
