#include "tessera/launch/equal_ranks.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/checkpoint/collective_files.h"

namespace tessera::launch {

using nlohmann::json;

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

}  // namespace tessera::launch
