#include "tessera/settings/places.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/json_file.h"
#include "tessera/base/text/printable.h"
#include "tessera/settings/resolve/run_limits.h"

namespace tessera::settings {
namespace {

constexpr std::string_view kForm = "\"dp0.gtp1:0,3;dp2:1\" (replica, gtp rank, tp slots), or a .json file";

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t end = text.find(separator); end != text.npos; end = text.find(separator)) {
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  parts.push_back(text);
  return parts;
}

// Returns nullopt unless the text is a number from 0 to kMaxRanks.
std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number >= 0 && number <= kMaxRanks ? std::optional(number) : std::nullopt;
}

// Parses "dp0.gtp1". The coordinates may have any order. A missing gtp is 0, and dp is required.
TpGroup parse_group(std::string_view text, std::string_view flag) {
  std::map<std::string, int> coordinates;
  for (const std::string_view part : split(text, '.')) {
    const std::size_t digits = part.find_first_of("0123456789");
    const std::string axis(part.substr(0, digits));
    const auto number = digits == part.npos ? std::nullopt : number_of(part.substr(digits));
    const bool is_known = axis == "dp" || axis == "gtp" || axis == "cp" || axis == "pp";
    if (!number || !is_known || !coordinates.emplace(axis, *number).second)
      throw InputError("{}: got the tp group '{}', expected {}", flag, base::excerpt(text), kForm);
  }
  for (const std::string axis : {"cp", "pp"})
    if (const auto found = coordinates.find(axis); found != coordinates.end() && found->second != 0)
      throw InputError("{}: got {}{} in '{}', expected 0: {} parallelism is not built yet", flag, axis, found->second,
                       base::excerpt(text), axis == "cp" ? "context" : "pipeline");
  if (!coordinates.contains("dp"))
    throw InputError("{}: the tp group '{}' has no dp coordinate, expected {}", flag, base::excerpt(text), kForm);
  return {.dp = coordinates["dp"], .gtp = coordinates.contains("gtp") ? coordinates["gtp"] : 0};
}

// Sorts the slots of each group. Throws InputError for a place that is named twice.
PlaceMap sorted(PlaceMap slots, std::string_view flag) {
  for (auto& [group, named] : slots) {
    std::ranges::sort(named);
    if (const auto twice = std::ranges::adjacent_find(named); twice != named.end())
      throw InputError("{}: place {} is named twice", flag, to_text(group, *twice));
  }
  return slots;
}

// Throws InputError for the first place outside the mesh.
void check_inside(const PlaceMap& slots, const MeshSettings& mesh, std::string_view flag) {
  for (const auto& [group, named] : slots) {
    if (group.dp >= mesh.dp)
      throw InputError("{}: place {} is in replica {}, expected one below --dp {}", flag, to_text(group, named.front()),
                       group.dp, mesh.dp);
    if (group.gtp >= mesh.gtp)
      throw InputError("{}: place {} is of gtp rank {}, expected one below --gtp {}", flag,
                       to_text(group, named.front()), group.gtp, mesh.gtp);
    if (named.back() >= mesh.tp)
      throw InputError("{}: place {} is tp slot {}, expected one below --tp {}", flag, to_text(group, named.back()),
                       named.back(), mesh.tp);
  }
}

// Retires live slots of each group with a dead slot, from the highest slot down, until `count` slots do not take part.
PlaceMap with_spares(PlaceMap dead, int count, int tp) {
  for (auto& [group, slots] : dead)
    for (int slot = tp - 1; slot >= 0 && static_cast<int>(slots.size()) < count; --slot)
      if (const auto at = std::ranges::lower_bound(slots, slot); at == slots.end() || *at != slot)
        slots.insert(at, slot);
  return dead;
}

std::size_t most_slots(const PlaceMap& slots) {
  std::size_t most = 0;
  for (const auto& [group, named] : slots) most = std::max(most, named.size());
  return most;
}

PlaceMap with_requested_spares(const PlaceMap& dead, const MeshSettings& mesh) {
  if (mesh.unused.tp_spares.empty()) return dead;
  if (dead.empty())
    throw InputError("--tp-spares: got {} without --dead, expected dead places", base::excerpt(mesh.unused.tp_spares));
  const int tp = static_cast<int>(mesh.tp);
  if (mesh.unused.tp_spares == "auto") return uniform_spares(dead, tp).inactive;
  const std::optional<int> spares = number_of(mesh.unused.tp_spares);
  if (!spares || *spares < 1 || *spares > tp)
    throw InputError("--tp-spares: got {}, expected auto or 1 to --tp {}", base::excerpt(mesh.unused.tp_spares), tp);
  for (const auto& [group, slots] : dead)
    if (static_cast<int>(slots.size()) > *spares)
      throw InputError("--tp-spares: got {}, expected at least {}: --dead names {} slots of dp{}.gtp{}", *spares,
                       slots.size(), slots.size(), group.dp, group.gtp);
  return with_spares(dead, *spares, tp);
}

nlohmann::json read_map(const std::string& file, std::string_view flag) {
  try {
    return base::read_json_file(file);
  } catch (const InputError& error) {
    throw InputError("{}: {}", flag, error.what());
  }
}

// Returns the flags that leave places without a rank, such as "--dead and --tp-spares".
std::string flags_of_places(const MeshSettings& mesh) {
  std::vector<std::string_view> flags;
  if (!mesh.unused.dead.empty()) flags.emplace_back("--dead");
  if (!mesh.unused.idle.empty()) flags.emplace_back("--idle");
  if (!mesh.unused.tp_spares.empty()) flags.emplace_back("--tp-spares");
  return fmt::format("{}", fmt::join(flags, " and "));
}

}  // namespace

PlaceMap parse_slots(std::string_view text, std::string_view flag) {
  PlaceMap slots;
  if (text.empty()) return slots;
  for (const std::string_view entry : split(text, ';')) {
    const std::size_t colon = entry.find(':');
    if (colon == entry.npos) throw InputError("{}: got '{}', expected {}", flag, base::excerpt(entry), kForm);
    const TpGroup group = parse_group(entry.substr(0, colon), flag);
    for (const std::string_view word : split(entry.substr(colon + 1), ',')) {
      const std::optional<int> slot = number_of(word);
      if (!slot)
        throw InputError("{}: got the tp slot '{}' in '{}', expected {}", flag, base::excerpt(word),
                         base::excerpt(entry), kForm);
      slots[group].push_back(*slot);
    }
  }
  return sorted(std::move(slots), flag);
}

PlaceMap read_slots(const std::string& text, std::string_view flag) {
  if (!text.ends_with(".json")) return parse_slots(text, flag);
  const nlohmann::json file = read_map(text, flag);
  const std::string where = fmt::format("{} {}", flag, text);
  if (!file.is_object()) throw InputError("{}: expected an object {{\"dp0.gtp1\": [0, 3]}}", where);
  PlaceMap slots;
  for (const auto& [key, list] : file.items()) {
    const TpGroup group = parse_group(key, where);
    if (!list.is_array() || list.empty())
      throw InputError("{}: '{}' is {}, expected a list of tp slots", where, base::excerpt(key), base::shown(list));
    for (const nlohmann::json& slot : list) {
      if (!slot.is_number_unsigned() || slot.get<std::uint64_t>() > std::uint64_t{kMaxRanks})
        throw InputError("{}: '{}' has the tp slot {}, expected a number from 0 to {}", where, base::excerpt(key),
                         base::shown(slot), kMaxRanks);
      slots[group].push_back(slot.get<int>());
    }
  }
  return sorted(std::move(slots), where);
}

std::string to_text(const PlaceMap& slots) {
  std::vector<std::string> entries;
  for (const auto& [group, named] : slots)
    entries.push_back(fmt::format("dp{}.gtp{}:{}", group.dp, group.gtp, fmt::join(named, ",")));
  return fmt::format("{}", fmt::join(entries, ";"));
}

std::string to_text(const TpGroup& group, int slot) {
  return fmt::format("dp{}.gtp{}:{}", group.dp, group.gtp, slot);
}

Spares uniform_spares(const PlaceMap& dead, int tp) {
  const int count = static_cast<int>(most_slots(dead));
  return {.count = count, .inactive = with_spares(dead, count, tp)};
}

PlaceMap inactive_slots(const MeshSettings& mesh) {
  const PlaceMap &dead = mesh.unused.dead, &idle = mesh.unused.idle;
  check_inside(dead, mesh, "--dead");
  check_inside(idle, mesh, "--idle");
  for (const auto& [group, slots] : idle)
    if (const auto found = dead.find(group); found != dead.end())
      for (const int slot : slots)
        if (std::ranges::binary_search(found->second, slot))
          throw InputError("--idle: place {} is also named by --dead", to_text(group, slot));
  PlaceMap inactive = with_requested_spares(dead, mesh);
  for (const auto& [group, slots] : idle) {
    std::vector<int>& known = inactive[group];
    std::vector<int> both;
    std::ranges::set_union(known, slots, std::back_inserter(both));
    known = std::move(both);
  }
  if (count(inactive) == mesh.places())
    throw InputError("{}: no place of tp {} x gtp {} x dp {} is left", flags_of_places(mesh), mesh.tp, mesh.gtp,
                     mesh.dp);
  return inactive;
}

std::vector<int> active_slots(const PlaceMap& inactive, const TpGroup& group, int tp) {
  std::vector<int> all(static_cast<std::size_t>(tp)), active;
  std::iota(all.begin(), all.end(), 0);
  const auto found = inactive.find(group);
  if (found == inactive.end()) return all;
  std::ranges::set_difference(all, found->second, std::back_inserter(active));
  return active;
}

std::vector<int> places_of(const PlaceMap& slots, std::int64_t tp, std::int64_t gtp) {
  std::vector<int> places;
  for (const auto& [group, named] : slots)
    for (const int slot : named)
      places.push_back(slot + static_cast<int>(tp) * (group.gtp + static_cast<int>(gtp) * group.dp));
  return places;
}

std::int64_t replicas_of_processes(const MeshSettings& mesh, int processes) {
  const std::int64_t replicas = processes / mesh.replica_places();
  if (processes % mesh.replica_places() != 0) return 0;
  for (const PlaceMap& places : {mesh.unused.dead, mesh.unused.idle})
    for (const auto& [group, slots] : places)
      if (group.dp >= replicas) return 0;
  return replicas;
}

StartedRank started_rank(MeshSettings mesh, int rank, int processes) {
  StartedRank all{.rank = rank, .size = processes};
  if (mesh.unused.dead.empty() && mesh.unused.idle.empty()) return all;
  if (mesh.dp == 0) mesh.dp = replicas_of_processes(mesh, processes);
  if (mesh.places() != processes) return all;
  const PlaceMap unused = inactive_slots(mesh), &dead = mesh.unused.dead;
  std::vector<int> places = places_of(unused, mesh.tp, mesh.gtp);
  std::ranges::sort(places);
  const auto at = std::ranges::lower_bound(places, rank);
  const int before = static_cast<int>(at - places.begin()), size = processes - static_cast<int>(places.size());
  if (at == places.end() || *at != rank) return {.rank = rank - before, .size = size};
  const int slot = rank % static_cast<int>(mesh.tp), group = rank / static_cast<int>(mesh.tp);
  const TpGroup place{.dp = group / static_cast<int>(mesh.gtp), .gtp = group % static_cast<int>(mesh.gtp)};
  const auto found = dead.find(place);
  const bool is_dead = found != dead.end() && std::ranges::binary_search(found->second, slot);
  return {.rank = rank - before,
          .size = size,
          .text = fmt::format("tessera: process {} ends without work: place {} is {}", rank, to_text(place, slot),
                              is_dead ? "dead" : "not used")};
}

std::int64_t count(const PlaceMap& slots) {
  std::int64_t number = 0;
  for (const auto& [group, named] : slots) number += static_cast<std::int64_t>(named.size());
  return number;
}

}  // namespace tessera::settings
