#include "tessera/settings/shares.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "tessera/base/ceil_div.h"
#include "tessera/base/error.h"
#include "tessera/base/text/printable.h"
#include "tessera/settings/places.h"

namespace tessera::settings {
namespace {

struct Replica {
  std::int64_t readers = 0;
  int schedule = 0;  // data::ReplicaShare::schedule
  double work = 1;   // of the rank with most units, as a multiple of its work in a full group
  bool is_reduced = false;
};

// Returns the units of the busiest rank in a group of `live` ranks, relative to a group of `tp` ranks.
double work_of(const TpUnits& units, std::int64_t live, std::int64_t tp) {
  const auto ratio = [&](std::int64_t count) {
    return static_cast<double>(base::ceil_div(count, live)) / static_cast<double>(base::ceil_div(count, tp));
  };
  return std::max(ratio(units.heads), ratio(units.ffn));
}

std::vector<Replica> replicas_of(const TrainConfig& config, const TpUnits& units) {
  const PlaceMap unused = config.mesh.has_unused_places() ? inactive_slots(config.mesh) : PlaceMap();
  std::vector<Replica> replicas;
  // The key contains the slots of each tp group that has a rank.
  std::map<std::vector<std::vector<int>>, int> schedules;
  for (int dp = 0; dp < config.mesh.dp; ++dp) {
    Replica replica;
    std::vector<std::vector<int>> shape;
    for (int gtp = 0; gtp < config.mesh.gtp; ++gtp) {
      std::vector<int> slots = active_slots(unused, {.dp = dp, .gtp = gtp}, static_cast<int>(config.mesh.tp));
      const auto live = static_cast<std::int64_t>(slots.size());
      if (live < config.mesh.tp) replica.is_reduced = true;
      if (live == 0) continue;
      ++replica.readers;
      replica.work = std::max(replica.work, work_of(units, live, config.mesh.tp));
      shape.push_back(std::move(slots));
    }
    if (replica.readers == 0) continue;
    replica.schedule = schedules.try_emplace(std::move(shape), static_cast<int>(schedules.size())).first->second;
    replicas.push_back(replica);
  }
  return replicas;
}

// Returns shares in proportion to `speeds` that add up to `total`. Shares are rounded down. The remaining sequences are
// added to the shares with the largest remainders; among equal remainders, the first share is increased.
std::vector<std::int64_t> proportional(std::int64_t total, const std::vector<double>& speeds) {
  const double all = std::accumulate(speeds.begin(), speeds.end(), 0.0);
  std::vector<std::int64_t> shares;
  std::vector<double> remainders;
  for (const double speed : speeds) {
    const double exact = static_cast<double>(total) * speed / all;
    shares.push_back(static_cast<std::int64_t>(exact));
    remainders.push_back(exact - static_cast<double>(shares.back()));
  }
  std::vector<std::size_t> order(shares.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t share) { return remainders[share]; });
  const std::int64_t left = total - std::accumulate(shares.begin(), shares.end(), std::int64_t{0});
  for (std::int64_t i = 0; i < left; ++i) ++shares[order[static_cast<std::size_t>(i) % order.size()]];
  return shares;
}

std::vector<std::int64_t> fixed_shares(const TrainConfig& config, const std::vector<Replica>& replicas) {
  std::int64_t fixed = 0;
  const std::string& text = config.mesh.unused.reduced_batch;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fixed);
  if (error != std::errc() || end != text.data() + text.size() || fixed < 0)
    throw InputError("--reduced-batch: got {}, expected auto or a number of sequences", base::excerpt(text));
  if (fixed > config.global_batch)
    throw InputError("--reduced-batch: got {}, expected at most --global-batch {}", text, config.global_batch);
  const auto reduced = std::ranges::count_if(replicas, &Replica::is_reduced);
  const std::int64_t rest = config.global_batch - fixed * reduced;
  const auto whole = static_cast<std::int64_t>(replicas.size()) - reduced;
  if (rest < 0)
    throw InputError(
        "--reduced-batch: got {} for {} reduced replicas of {}, which is {} sequences, expected at most "
        "--global-batch {}",
        fixed, reduced, replicas.size(), fixed * reduced, config.global_batch);
  if (whole == 0 && rest > 0)
    throw InputError(
        "--reduced-batch: got {} for {} reduced replicas of {}, which leaves {} of --global-batch {}: no other replica "
        "reads them (expected --global-batch {}, or auto)",
        fixed, reduced, replicas.size(), rest, config.global_batch, fixed * reduced);
  std::vector<std::int64_t> shares;
  std::int64_t index = 0;  // index of the replica among the replicas without unused places
  for (const Replica& replica : replicas)
    shares.push_back(replica.is_reduced ? fixed : rest / whole + (index++ < rest % whole ? 1 : 0));
  return shares;
}

}  // namespace

TpUnits units_of(const models::ModelConfig& model) {
  const nlohmann::json sizes = model.to_json();
  return {.heads = sizes.value("num_attention_heads", std::int64_t{1}),
          .ffn = sizes.value("intermediate_size", std::int64_t{1}),
          .vocabulary = sizes.value("vocab_size", std::int64_t{1})};
}

data::BatchShape batch_shape(const TrainConfig& config, const TpUnits& units) {
  const std::vector<Replica> replicas = replicas_of(config, units);
  std::vector<std::int64_t> readers;
  for (const Replica& replica : replicas) readers.push_back(replica.readers);
  data::BatchShape shape = data::equal_shares(config.micro_batch, config.global_batch, readers);
  for (std::size_t replica = 0; replica < replicas.size(); ++replica)
    shape.replicas[replica].schedule = replicas[replica].schedule;
  if (config.mesh.unused.reduced_batch.empty()) return shape;
  std::vector<std::int64_t> shares;
  if (config.mesh.unused.reduced_batch == "auto") {
    std::vector<double> speeds;
    for (const Replica& replica : replicas) speeds.push_back(static_cast<double>(replica.readers) / replica.work);
    shares = proportional(config.global_batch, speeds);
  } else {
    shares = fixed_shares(config, replicas);
  }
  for (std::size_t replica = 0; replica < shares.size(); ++replica) shape.replicas[replica].sequences = shares[replica];
  return shape;
}

}  // namespace tessera::settings
