#include "tessera/layout/layout_json.h"

namespace tessera::layout {
namespace {

nlohmann::json range(std::int64_t begin, std::int64_t count) {
  return {begin, begin + count};
}

}  // namespace

void to_json(nlohmann::json& json, const Layout& layout) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const LocalLayout& local : layout.ranks) {
    nlohmann::json pieces = nlohmann::json::array();
    for (const Piece& piece : local.pieces) {
      pieces.push_back({{"rows", range(piece.box.row, piece.box.rows)},
                        {"cols", range(piece.box.col, piece.box.cols)},
                        {"offset", piece.offset},
                        {"stride", piece.stride}});
    }
    ranks.push_back({{"size", local.size}, {"pieces", std::move(pieces)}});
  }
  json = {{"shape", {layout.shape.rows, layout.shape.cols}},
          {"state", layout.state == State::partial ? "partial" : "replicated"},
          {"ranks", std::move(ranks)}};
}

void to_json(nlohmann::json& json, const TransferPlan& plan) {
  nlohmann::json transfers = nlohmann::json::array();
  for (const Transfer& transfer : plan.transfers) {
    transfers.push_back({{"source", transfer.source},
                         {"target", transfer.target},
                         {"rows", range(transfer.box.row, transfer.box.rows)},
                         {"cols", range(transfer.box.col, transfer.box.cols)},
                         {"source_offset", transfer.source_offset},
                         {"source_stride", transfer.source_stride},
                         {"target_offset", transfer.target_offset},
                         {"target_stride", transfer.target_stride}});
  }
  json = {{"ranks", plan.ranks}, {"adds", plan.adds}, {"transfers", std::move(transfers)}};
}

void to_json(nlohmann::json& json, const Collective& collective) {
  json = {{"kind", name_of(collective.kind)}, {"counts", collective.counts}, {"uniform", collective.uniform}};
}

}  // namespace tessera::layout
