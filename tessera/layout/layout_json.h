// Converts layouts, plans and recognised collectives to JSON, for tests and debugging. The program does not print this
// JSON.
#pragma once
#include <nlohmann/json.hpp>

#include "tessera/layout/redistribute.h"

namespace tessera::layout {

// {"shape": [rows, cols], "state": "replicated" | "partial", "ranks": [{"size": n, "pieces": [{"rows": [begin, end],
// "cols": [begin, end], "offset": n, "stride": n}]}]}. nlohmann::json finds this function by argument-dependent lookup:
// `nlohmann::json json = layout`.
void to_json(nlohmann::json& json, const Layout& layout);
// {"ranks": n, "adds": bool, "transfers": [{"source": r, "target": r, "rows": [begin, end], "cols": [begin, end],
// "source_offset": n, "source_stride": n, "target_offset": n, "target_stride": n}]}
void to_json(nlohmann::json& json, const TransferPlan& plan);
// {"kind": "all_gather", "counts": [...], "uniform": bool}
void to_json(nlohmann::json& json, const Collective& collective);

}  // namespace tessera::layout
