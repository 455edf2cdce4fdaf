#include "tessera/rendezvous/launcher.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::rendezvous {
namespace {

class Reader {
 public:
  explicit Reader(const Variables& variables) : variables_(variables) {}

  std::optional<std::string> text(const std::string& name) const {
    const auto found = variables_.find(name);
    return found == variables_.end() || found->second.empty() ? std::nullopt : std::optional(found->second);
  }
  // Returns the number in a variable. Throws InputError if the number is not in [least, most].
  std::optional<int> find_number(const std::string& name, int least, int most) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int number = 0;
    const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
    if (error != std::errc() || end != value->data() + value->size() || number < least || number > most)
      throw InputError("{}: expected a number in [{}, {}], got '{}'", name, least, most, *value);
    return number;
  }
  int number(const std::string& name, int least, int most) const {
    if (const auto value = find_number(name, least, most)) return *value;
    throw InputError("{}: expected a number in [{}, {}], but the variable is not set", name, least, most);
  }

 private:
  const Variables& variables_;
};

constexpr int kMaxRanks = 1 << 24;
constexpr std::size_t kLongestRun = 200;  // largest number of bytes of the identity of a run

// Returns the first host of a node list: "node07" for "node[07-12,20],other".
std::string first_host(const std::string& nodes) {
  const std::size_t end = nodes.find_first_of("[,");
  if (end == std::string::npos || nodes[end] == ',') return nodes.substr(0, end);
  const std::size_t close = nodes.find(']', end);
  const std::size_t number = nodes.find_first_of("-,]", end);
  if (close == std::string::npos || number == end + 1)
    throw InputError("SLURM_JOB_NODELIST: expected a list of nodes, got '{}'", nodes);
  const std::size_t next = nodes.find(',', close);
  return nodes.substr(0, end) + nodes.substr(end + 1, number - end - 1) +
         nodes.substr(close + 1, next == std::string::npos ? next : next - close - 1);
}

struct Names {
  const char *launcher, *rank, *size, *local_rank, *local_size;
  bool is_marked = false;  // used only if local_rank is set, because other launchers also set rank and size
};
// A Slurm batch script has SLURM_PROCID and SLURM_LOCALID, as its tasks do, but the script is not in a step.
constexpr std::array kLaunchers{Names{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
                                Names{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                Names{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", true},
                                Names{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", ""},
                                Names{"mpirun", "PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"}};

// Returns null if no launcher started the process. A Slurm step with one task also returns null, because an interactive
// shell is such a step.
const Names* names_of(const Reader& reader) {
  for (const Names& names : kLaunchers) {
    const auto size = reader.text(names.size);
    if (!size || !reader.text(names.rank) || (names.is_marked && !reader.text(names.local_rank))) continue;
    if (names.launcher == std::string_view("srun") && *size == "1") return nullptr;
    return &names;
  }
  return nullptr;
}

Launch read_ranks(const Reader& reader, const Names* names) {
  Launch launch;
  if (names == nullptr) return launch;
  launch.launcher = names->launcher;
  launch.is_self_started = reader.text("TESSERA_SELF_STARTED").has_value();
  launch.size = reader.number(names->size, 1, kMaxRanks);
  launch.rank = reader.number(names->rank, 0, launch.size - 1);
  return launch;
}

bool is_loopback(const std::string& address) {
  in_addr numeric{};
  const bool is_numeric = inet_pton(AF_INET, address.c_str(), &numeric) == 1;
  return address == "localhost" || address == "::1" || (is_numeric && ntohl(numeric.s_addr) >> 24 == IN_LOOPBACKNET);
}

bool is_one_host(const Reader& reader, const Launch& launch, const Names* names) {
  if (launch.size == 1 || is_loopback(reader.text("MASTER_ADDR").value_or(""))) return true;
  if (reader.find_number(names->local_size, 1, kMaxRanks).value_or(0) == launch.size) return true;
  return launch.launcher == "srun" && reader.find_number("SLURM_STEP_NUM_NODES", 1, kMaxRanks).value_or(0) == 1;
}

std::string address_of(const Reader& reader, const Launch& launch) {
  if (launch.is_one_host && !launch.hosts_store) return "127.0.0.1";
  if (const auto address = reader.text("MASTER_ADDR")) return *address;
  if (launch.is_one_host) return "127.0.0.1";
  if (launch.launcher == "srun")
    for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
      if (const auto nodes = reader.text(name)) return first_host(*nodes);
  throw InputError(
      "MASTER_ADDR: expected the address of rank 0's node, for {} ranks of {}, but the variable is not set",
      launch.size, launch.launcher);
}

// Returns the identity that the launcher has given to the run, or an empty text.
std::string run_of(const Reader& reader, const Launch& launch) {
  const auto checked = [&](const char* name) -> std::optional<std::string> {
    auto value = reader.text(name);
    if (value && value->size() > kLongestRun)
      throw InputError("{}: expected at most {} bytes, got {}", name, kLongestRun, value->size());
    return value;
  };
  if (const auto own = checked("TESSERA_RUN_ID")) return *own;
  if (launch.launcher == "torchrun") {
    const auto run = checked("TORCHELASTIC_RUN_ID");
    return run && *run != "none" ? *run : std::string();  // "none" is torchrun's default for every run
  }
  if (launch.launcher == "srun") {
    const auto job = checked("SLURM_JOB_ID"), step = checked("SLURM_STEP_ID");
    if (job && step) return fmt::format("{}.{}", *job, *step);
  }
  return checked("PMIX_NAMESPACE").value_or("");
}

}  // namespace

Launch read_ranks(const Variables& variables) {
  const Reader reader(variables);
  return read_ranks(reader, names_of(reader));
}

Launch read_launch(const Variables& variables) {
  const Reader reader(variables);
  const Names* const names = names_of(reader);
  Launch launch = read_ranks(reader, names);
  if (names != nullptr) launch.local_rank = reader.number(names->local_rank, 0, launch.size - 1);
  launch.port = reader.find_number("MASTER_PORT", 1, 65535).value_or(launch.port);
  const auto agent = reader.text("TORCHELASTIC_USE_AGENT_STORE");
  launch.hosts_store = launch.launcher == "torchrun" && agent && (*agent == "True" || *agent == "1");
  launch.is_one_host = is_one_host(reader, launch, names);
  launch.address = address_of(reader, launch);
  launch.run = run_of(reader, launch);
  if (launch.rank == 0) launch.socket = reader.find_number("TESSERA_STORE_SOCKET", 0, 1 << 20).value_or(-1);
  if (launch.hosts_store) launch.attempt = reader.find_number("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30).value_or(0);
  return launch;
}

int device_of(const Launch& launch, int devices) {
  if (devices == 1 && launch.size > 1 && launch.launcher != "torchrun") return 0;
  if (launch.local_rank < devices) return launch.local_rank;
  throw InputError("CUDA devices: expected one for each rank of a node, got {} for local rank {}", devices,
                   launch.local_rank);
}

Variables own_variables() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

}  // namespace tessera::rendezvous
