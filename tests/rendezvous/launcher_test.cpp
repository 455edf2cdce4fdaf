#include "tessera/rendezvous/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::rendezvous {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

std::string refusal(const Variables& variables) {
  try {
    read_launch(variables);
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing";
}

TEST(Launcher, AProcessWithoutALauncherIsRankZeroOfOne) {
  const Launch launch = read_launch({{"PATH", "/bin"}});
  EXPECT_EQ(launch.launcher, "");
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.size, 1);
  EXPECT_EQ(launch.address, "127.0.0.1");
  EXPECT_FALSE(launch.hosts_store);
}

TEST(Launcher, OnlyRankZeroReadsTheStoresSocket) {
  Variables variables{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"TESSERA_STORE_SOCKET", "7"}};
  variables["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_EQ(read_launch(variables).socket, 7);
  variables["RANK"] = "1";
  EXPECT_EQ(read_launch(variables).socket, -1);
  variables["RANK"] = "0";
  variables["TESSERA_STORE_SOCKET"] = "seven";
  EXPECT_THAT(refusal(variables), testing::HasSubstr("TESSERA_STORE_SOCKET"));
}

TEST(Launcher, RanksThatTheProgramStartedAreSelfStarted) {
  Variables variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  EXPECT_FALSE(read_ranks(variables).is_self_started);
  variables["TESSERA_SELF_STARTED"] = "1";
  EXPECT_TRUE(read_ranks(variables).is_self_started);
}

TEST(Launcher, TorchrunsVariablesStateWhetherItHostsTheStore) {
  const Variables variables{{"RANK", "3"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"MASTER_ADDR", "node7"},
                            {"MASTER_PORT", "1234"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                            {"SLURM_PROCID", "0"},  // set for the script that called torchrun
                            {"SLURM_STEP_NUM_TASKS", "2"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"}};
  const Launch launch = read_launch(variables);
  EXPECT_EQ(launch.launcher, "torchrun");
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.size, 8);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.address, "node7");
  EXPECT_EQ(launch.port, 1234);
  EXPECT_TRUE(launch.hosts_store);
  EXPECT_EQ(launch.attempt, 2);  // the store survives restarts
  Variables own = variables;
  own.insert_or_assign("TORCHELASTIC_USE_AGENT_STORE", "False");
  EXPECT_FALSE(read_launch(own).hosts_store);
  EXPECT_EQ(read_launch(own).attempt, 0);  // each attempt has its own store
}

TEST(Launcher, MpirunOnOneNodeNeedsNoAddress) {
  Variables variables{{"OMPI_COMM_WORLD_RANK", "1"},
                      {"OMPI_COMM_WORLD_SIZE", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  const Launch launch = read_launch(variables);
  EXPECT_EQ(launch.launcher, "mpirun");
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.address, "127.0.0.1");
  variables.insert_or_assign("OMPI_COMM_WORLD_LOCAL_SIZE", "1");
  EXPECT_THAT(refusal(variables), testing::HasSubstr("MASTER_ADDR: expected"));
}

// Ranks on one host reach the store through loopback, even if MASTER_ADDR is another address of this host.
TEST(Launcher, RanksOfOneHostUseLoopback) {
  const auto launch = [](Variables variables, const char* address) {
    variables["MASTER_ADDR"] = address;
    return read_launch(variables);
  };
  const Variables by_hand{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}};
  Variables hosts = by_hand, srun{{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "1"}};
  const Variables mpirun{{"OMPI_COMM_WORLD_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "2"},
                         {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                         {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  hosts["LOCAL_WORLD_SIZE"] = "2";
  srun["SLURM_STEP_NUM_NODES"] = "1";
  for (const Variables& all_here : {hosts, srun, mpirun}) {
    EXPECT_TRUE(launch(all_here, "node7").is_one_host);
    EXPECT_EQ(launch(all_here, "node7").address, "127.0.0.1");
  }
  for (const char* loopback : {"localhost", "127.0.0.1", "127.0.1.1", "::1"}) {
    EXPECT_TRUE(launch(by_hand, loopback).is_one_host) << loopback;
    EXPECT_EQ(launch(by_hand, loopback).address, "127.0.0.1") << loopback;
  }
  hosts["LOCAL_WORLD_SIZE"] = "1";
  srun["SLURM_STEP_NUM_NODES"] = "2";
  for (const Variables& elsewhere : {by_hand, hosts, srun}) {
    EXPECT_FALSE(launch(elsewhere, "node7").is_one_host);
    EXPECT_EQ(launch(elsewhere, "node7").address, "node7");
    EXPECT_EQ(launch(elsewhere, "127.example.org").address, "127.example.org");
  }
  hosts = by_hand;
  hosts["LOCAL_WORLD_SIZE"] = "2";
  hosts["TORCHELASTIC_USE_AGENT_STORE"] = "True";  // torchrun listens, not this program
  EXPECT_EQ(launch(hosts, "node7").address, "node7");
}

TEST(Launcher, TheRunHasTheIdentityOfItsLauncher) {
  const auto run_of = [](Variables variables, const Variables& more) {
    variables["MASTER_ADDR"] = "node7";
    variables.insert(more.begin(), more.end());
    return read_launch(variables).run;
  };
  const Variables torchrun{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}};
  const Variables srun{{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_LOCALID", "1"}};
  const Variables mpirun{
      {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}};
  EXPECT_EQ(run_of(torchrun, {{"TORCHELASTIC_RUN_ID", "a run"}, {"PMIX_NAMESPACE", "7"}}), "a run");
  EXPECT_EQ(run_of(torchrun, {{"TORCHELASTIC_RUN_ID", "none"}}), "");  // the default of every run
  EXPECT_EQ(run_of(mpirun, {{"PMIX_NAMESPACE", "1554972673"}, {"SLURM_JOB_ID", "4"}}), "1554972673");
  EXPECT_EQ(run_of(srun, {{"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "3"}}), "12.3");
  EXPECT_EQ(run_of(srun, {{"SLURM_JOB_ID", "12"}}), "");
  for (const Variables& variables : {torchrun, srun, mpirun}) {
    EXPECT_EQ(run_of(variables, {}), "");
    EXPECT_EQ(run_of(variables, {{"TESSERA_RUN_ID", "own"}, {"TORCHELASTIC_RUN_ID", "a run"}, {"PMIX_NAMESPACE", "7"}}),
              "own");
  }
  EXPECT_THAT(
      [&] {
        run_of(torchrun, {{"TESSERA_RUN_ID", std::string(201, 'x')}});
      },
      ThrowsMessage<InputError>(HasSubstr("TESSERA_RUN_ID: expected at most 200 bytes, got 201")));
}

TEST(Launcher, SrunsStoreIsOnTheFirstNode) {
  const auto address = [](const std::string& nodes) {
    return read_launch({{"SLURM_PROCID", "2"},
                        {"SLURM_NTASKS", "8"},  // set for the job
                        {"SLURM_STEP_NUM_TASKS", "4"},
                        {"SLURM_LOCALID", "0"},
                        {"SLURM_STEP_NUM_NODES", "2"},
                        {"SLURM_JOB_NODELIST", nodes}})
        .address;
  };
  EXPECT_EQ(address("alone"), "alone");
  EXPECT_EQ(address("a,b"), "a");
  EXPECT_EQ(address("gpu[07-12,20],other"), "gpu07");
  EXPECT_EQ(address("gpu[3,9]"), "gpu3");
  EXPECT_EQ(address("rack[1-2]-node,other"), "rack1-node");
  EXPECT_THAT([&] { address("gpu["); },
              ThrowsMessage<InputError>(HasSubstr("SLURM_JOB_NODELIST: expected a list of nodes, got 'gpu['")));
}

TEST(Launcher, SlurmBatchScriptsAndShellsAreNotRanks) {
  Variables variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "0"}};
  EXPECT_EQ(read_launch(variables).launcher, "");
  variables["SLURM_STEP_NUM_TASKS"] = "1";  // an interactive shell, or a step that starts its own ranks
  EXPECT_EQ(read_launch(variables).launcher, "");
  EXPECT_EQ(read_launch(variables).size, 1);
  variables["SLURM_STEP_NUM_TASKS"] = "4";
  variables["SLURM_STEP_NUM_NODES"] = "1";
  EXPECT_EQ(read_launch(variables).launcher, "srun");
  EXPECT_EQ(read_launch(variables).size, 4);
  EXPECT_EQ(read_launch(variables).address, "127.0.0.1");
}

TEST(Launcher, MpichsVariablesPrecedeSruns) {
  Variables variables{{"PMI_RANK", "3"},        {"PMI_SIZE", "4"},
                      {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "4"},
                      {"SLURM_PROCID", "0"},    {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_LOCALID", "0"},   {"SLURM_STEP_NODELIST", "head"}};
  const Launch launch = read_launch(variables);
  EXPECT_EQ(launch.launcher, "mpirun");
  EXPECT_EQ(launch.rank, 3);
  EXPECT_EQ(launch.size, 4);
  EXPECT_EQ(launch.local_rank, 1);
  EXPECT_EQ(launch.address, "127.0.0.1");
  variables["MPI_LOCALNRANKS"] = "2";
  EXPECT_THAT(refusal(variables), testing::HasSubstr("MASTER_ADDR: expected"));
  variables.erase("MPI_LOCALRANKID");  // srun --mpi=pmi2 sets PMI_RANK and PMI_SIZE
  EXPECT_EQ(read_launch(variables).launcher, "srun");
  const Launch other =
      read_launch({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_LOCAL_RANK", "1"}, {"PMI_LOCAL_SIZE", "2"}});
  EXPECT_EQ(other.rank, 1);
  EXPECT_EQ(other.local_rank, 1);
}

TEST(Launcher, ReadRanksNeedsNeitherAddressNorLocalRank) {
  const Launch launch = read_ranks({{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.size, 2);
  EXPECT_THAT(
      [&] {
        read_ranks({{"RANK", "2"}, {"WORLD_SIZE", "2"}});
      },
      ThrowsMessage<InputError>(HasSubstr("RANK: expected a number in [0, 1], got '2'")));
  EXPECT_EQ(read_ranks({}).size, 1);
}

TEST(Launcher, ErrorsContainTheExpectedAndTheActualValue) {
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
            "LOCAL_RANK: expected a number in [0, 1], but the variable is not set");
  EXPECT_EQ(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}),
            "RANK: expected a number in [0, 1], got '2'");
  EXPECT_EQ(refusal({{"RANK", "0"}, {"WORLD_SIZE", "two"}, {"LOCAL_RANK", "0"}}),
            "WORLD_SIZE: expected a number in [1, 16777216], got 'two'");
  EXPECT_EQ(refusal({{"MASTER_PORT", "70000"}}), "MASTER_PORT: expected a number in [1, 65535], got '70000'");
}

TEST(Launcher, EveryLocalRankHasADevice) {
  Launch launch{.launcher = "torchrun", .rank = 5, .size = 8, .local_rank = 1};
  EXPECT_EQ(device_of(launch, 4), 1);
  EXPECT_THAT([&] { device_of(launch, 1); },
              ThrowsMessage<InputError>(
                  HasSubstr("CUDA devices: expected one for each rank of a node, got 1 for local rank 1")));
  launch.launcher = "srun";  // srun may make only one device visible to each task
  EXPECT_EQ(device_of(launch, 1), 0);
  EXPECT_THAT([&] { device_of(launch, 0); }, ThrowsMessage<InputError>(HasSubstr("got 0 for local rank 1")));
}

}  // namespace
}  // namespace tessera::rendezvous
