#include "tessera/run/launch/equal_ranks.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/checkpoint/collective_files.h"
#include "tessera/run/config/settings.h"

namespace tessera::run {

using nlohmann::json;

json equal_on_all_ranks(const RunSetup& setup) {
  constexpr std::array<std::string_view, 7> kMayDiffer = {"model",  "init", "data",      "valid",
                                                          "resume", "out",  "peak_flops"};
  json all = json::object();
  for (const Setting& setting : settings())
    if (std::ranges::find(kMayDiffer, setting.name) == kMayDiffer.end())
      all[flag_of(setting.name)] = value_of(setup.config, setting);
  all["the model"] = setup.model->to_json();
  all["the data"] = setup.data->fingerprint();
  if (setup.valid) all["the held-out data"] = setup.valid->fingerprint();
  all["the first step"] = setup.first_step;
  all["the first weights"] = setup.checkpoint ? "of a checkpoint" : setup.config.init.empty() ? "random" : "of --init";
  return all;
}

void require_equal(comm::Communicator& world, const json& own) {
  const json first = base::parse_json(checkpoint::broadcast_text(world, own.dump()), "rank 0");
  checkpoint::run_together(world, "", [&](const std::stop_token&) {
    for (const json& all : {own, first})
      for (const auto& [name, value] : all.items())
        if (const json here = own.value(name, json()), there = first.value(name, json()); here != there)
          throw InputError("{}: got {}, expected {} as on rank 0: start all ranks with the same flags and files", name,
                           base::shown(here), base::shown(there));
  });
}

}  // namespace tessera::run
