// Tests failures under mpirun: ranks that stop, fail or make different calls. Usage: mpirun -n 3 test_comm_mpi SCENARIO
// DIR. Each rank writes its final error to DIR. Rank 0 waits for the files, compares them, and prints "SCENARIO: as
// expected". In stop-at-start and stop-at-end the library prints a line and ends the processes.
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/comm/mpi/world.h"

namespace {

using namespace tessera;
using comm::Communicator;
using std::chrono::milliseconds;

constexpr int kExitCode = 3;  // the scenario passed; not 0, because the run itself has failed

std::string file_of(const std::string& folder, int rank) {
  return folder + "/rank" + std::to_string(rank);
}

// Returns the text that a rank has written. Waits for it for up to 30 s.
std::string left_by(const std::string& folder, int rank) {
  for (int i = 0; i < 300 && !std::filesystem::exists(file_of(folder, rank)); ++i)
    std::this_thread::sleep_for(milliseconds(100));
  std::ifstream file(file_of(folder, rank));
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Stops rank 1 if this MPI call is the one named by TESSERA_TEST_STOP_IN. Reads the rank from the launcher's variables,
// because MPI may not be initialised.
void stop_in(const char* call) {
  const char* wanted = std::getenv("TESSERA_TEST_STOP_IN");
  if (wanted == nullptr || std::string(wanted) != call) return;
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(name); rank != nullptr && std::string(rank) == "1") raise(SIGSTOP);
}

// The receives that MPI has not finished. Only the progress thread of the library calls MPI.
class OpenReceives {
 public:
  static OpenReceives& all() {
    static OpenReceives receives;
    return receives;
  }
  void add(MPI_Request request) {
    const std::lock_guard lock(mutex_);
    requests_.insert(request);
  }
  void remove(MPI_Request request) {
    const std::lock_guard lock(mutex_);
    requests_.erase(request);
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return requests_.size();
  }

 private:
  std::mutex mutex_;
  std::set<MPI_Request> requests_;
};

struct Scenario {
  comm::WorldOptions options;
  std::function<void(comm::World&, Communicator&)> body;
  std::map<int, std::string> expected;  // index: rank; text that its final error must contain
};

std::vector<pid_t> process_ids(Communicator& group) {
  const auto own = static_cast<std::int64_t>(getpid());
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(&own, all.data(), comm::equal_counts(group.size(), 1), quant::DType::i64).synchronize();
  return {all.begin(), all.end()};
}

// Rank 1 stops. When the other ranks have failed, it is resumed so that it can be ended.
void stop(comm::World& world, Communicator& group) {
  const auto ids = process_ids(group);
  if (world.rank() == 1) {
    raise(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(30));
  }
  float value = 1;
  try {
    group.all_reduce(&value, 1, quant::DType::fp32).synchronize();
  } catch (...) {
    if (world.rank() == 0) kill(ids[1], SIGCONT);
    throw;
  }
}

// Rank 1 has stopped and does not receive statuses. The other ranks post statuses and read those of each other.
void exchange_statuses(comm::World& world, rendezvous::Board& board) {
  const auto status = [](int rank, int number) {
    return std::string(100'000, static_cast<char>('a' + rank)) + std::to_string(number);
  };
  constexpr int last = 50;
  for (int i = 0; i <= last; ++i) board.post(status(world.rank(), i));
  const int other = 2 - world.rank();
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (board.read(other) != status(other, last)) {
    if (std::chrono::steady_clock::now() > limit) throw Error("no status from rank {}", other);
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// Rank 1 stops. The lanes of the other ranks still finish their work, including lanes that wait for them.
void drain(comm::World& world, Communicator& group) {
  const auto board = world.make_board();
  const auto ids = process_ids(group);
  if (world.rank() == 1) {
    raise(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(30));
  }
  exchange_statuses(world, *board);
  const auto lane = base::make_thread_lane("after");
  float value = 1;
  bool ran = false;
  group.all_reduce(&value, 1, quant::DType::fp32);
  group.barrier();
  lane->wait(group.lane().record());
  lane->run([&] { ran = true; });
  const base::Fence fence = lane->record();
  const bool drained = fence.wait_for(std::chrono::seconds(5));
  if (world.rank() == 0) kill(ids[1], SIGCONT);
  if (!drained) throw Error("not drained");
  if (ran) throw Error("work ran after a failure");
  fence.synchronize();
}

// Ranks call operations of two groups in different orders, which ends only at the time limit.
void deadlock(comm::World& world, Communicator& group) {
  const auto other = world.make_group("other", {{0, 1, 2}});
  (world.rank() == 1 ? *other : group).barrier().synchronize();
}

void other_operation(comm::World& world, Communicator& group) {
  float data[8] = {};
  if (world.rank() == 2)
    group.all_reduce(data, 4, quant::DType::fp32).synchronize();
  else
    group.broadcast(data, 4, quant::DType::fp32, 0).synchronize();
}

void other_count(comm::World& world, Communicator& group) {
  std::vector<float> data(100);
  const std::vector<std::int64_t> counts{10, world.rank() == 2 ? 20 : 10, 10};
  group.all_gather(data.data() + 50, data.data(), counts, quant::DType::fp32).synchronize();
}

void other_groups(comm::World& world, Communicator&) {
  world.make_group(world.rank() == 1 ? "dp" : "tp", {{0, 1, 2}});
}

// After a failed operation all pending work fails at once, in other groups too.
void after_a_failure(comm::World& world, Communicator& group) {
  const auto other = world.make_group("other", {{0, 1, 2}});
  try {
    deadlock(world, group);
  } catch (const Error&) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      other->barrier().synchronize();
    } catch (const Error& error) {
      if (std::chrono::steady_clock::now() - begin < milliseconds(400)) throw;
      throw Error("too late: {}", error.what());
    }
  }
  throw Error("no failure");
}

std::map<std::string, Scenario> scenarios() {
  const comm::WorldOptions short_limit{.timeout = milliseconds(1500)};
  const comm::WorldOptions checked{.timeout = milliseconds(30000), .check_mismatch = true};
  return {
      {"stop", {short_limit, stop, {{0, "nothing received from rank 1"}, {2, "nothing received from rank 1"}}}},
      {"drain", {short_limit, drain, {{0, "nothing received from rank 1"}, {2, "nothing received from rank 1"}}}},
      {"deadlock",
       {short_limit,
        deadlock,
        {{0, "time limit of 1500 ms passed: nothing received from rank 1"},
         {1, "time limit of 1500 ms passed: nothing received from ranks 0, 2"},
         {2, "time limit of 1500 ms passed: nothing received from rank 1"}}}},
      {"other-operation",
       {checked,
        other_operation,
        {{0, "rank 0 called broadcast(fp32, count 4, root 0), rank 2 called all_reduce(sum, fp32, count 4)"},
         {1, "rank 2 called all_reduce"},
         {2, "rank 2 called all_reduce(sum, fp32, count 4), rank 0 called broadcast"}}}},
      {"other-operation-unchecked", {short_limit, other_operation, {{2, "nothing received from ranks 0, 1"}}}},
      {"other-count-unchecked",
       {short_limit, other_count, {{2, "expected a message of 80 bytes from rank 1, got 40 bytes"}}}},
      {"other-groups",
       {checked, other_groups, {{0, "make_group tp #1"}, {1, "make_group dp #1"}, {2, "make_group tp #1"}}}},
      {"after-a-failure", {short_limit, after_a_failure, {{0, "an earlier operation failed"}, {2, "earlier"}}}},
  };
}

bool as_expected(const Scenario& scenario, const std::string& folder) {
  bool good = true;
  for (const auto& [rank, part] : scenario.expected) {
    const std::string text = left_by(folder, rank);
    if (text.find(part) != std::string::npos && text.find("after the failure") == std::string::npos) continue;
    good = false;
    std::printf("rank %d ended with '%s', expected '%s'\n", rank, text.c_str(), part.c_str());
  }
  return good;
}

// Runs without a failure other than the one of stop_in.
int run_clean(const std::string& name) {
  setenv("TESSERA_TEST_STOP_IN", name == "stop-at-start" ? "MPI_Init_thread" : "MPI_Finalize", 1);
  const auto world = comm::make_mpi_world({.timeout = milliseconds(1500)}, milliseconds(2000));
  world->make_group("test", {{0, 1, 2}})->barrier().synchronize();
  std::printf("rank %d is done", world->rank());  // without an end of line, so the text stays in a buffer
  return 0;
}

}  // namespace

// These definitions intercept the library's MPI calls.
int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  stop_in("MPI_Init_thread");
  return PMPI_Init_thread(argc, argv, required, provided);
}
int MPI_Irecv(void* data, int count, MPI_Datatype type, int source, int tag, MPI_Comm group, MPI_Request* request) {
  const int code = PMPI_Irecv(data, count, type, source, tag, group, request);
  OpenReceives::all().add(*request);
  return code;
}
int MPI_Testsome(int count, MPI_Request* requests, int* done, int* indices, MPI_Status* statuses) {
  const std::vector<MPI_Request> before(requests, requests + count);
  const int code = PMPI_Testsome(count, requests, done, indices, statuses);
  for (int i = 0; i < count; ++i)
    if (requests[i] == MPI_REQUEST_NULL) OpenReceives::all().remove(before[static_cast<std::size_t>(i)]);
  return code;
}
int MPI_Finalize() {
  stop_in("MPI_Finalize");
  return PMPI_Finalize();
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string name = argv[1], folder = argv[2];
  if (name == "stop-at-start" || name == "stop-at-end") return run_clean(name);
  const auto known = scenarios();
  const auto scenario = known.find(name);
  if (scenario == known.end()) return 2;
  int rank = 0;
  std::string text = "no error";
  try {
    const auto world = comm::make_mpi_world(scenario->second.options);
    rank = world->rank();
    const auto group = world->make_group("test", {{0, 1, 2}});
    scenario->second.body(*world, *group);
  } catch (const std::exception& error) {
    text = error.what();
    // The operation's buffers may be freed now.
    if (const std::size_t open = OpenReceives::all().count(); open > 0)
      text += " (after the failure, " + std::to_string(open) + " receives are posted)";
  }
  std::ofstream(file_of(folder, rank) + ".new") << text;
  std::filesystem::rename(file_of(folder, rank) + ".new", file_of(folder, rank));
  if (rank == 0) {
    const bool good = as_expected(scenario->second, folder);
    if (good) std::printf("%s: as expected\n", name.c_str());
    std::fflush(stdout);
    comm::abort_mpi(good ? kExitCode : 1);
  }
  std::this_thread::sleep_for(std::chrono::seconds(40));  // rank 0 ends the job
  comm::abort_mpi(1);
}
