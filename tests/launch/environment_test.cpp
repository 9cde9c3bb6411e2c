#include "penstock/launch/environment.h"

#include <gtest/gtest.h>

#include <map>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

using Variables = std::map<std::string, std::string>;

VariableLookup lookup_in(const Variables& variables) {
  return [&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

LauncherEnvironment detect(const Variables& variables) {
  return detect_launcher(lookup_in(variables));
}

std::string describe(const LauncherEnvironment& e) {
  return str(e.kind, ": rank ", e.rank, "/", e.world_size, " local ",
             e.local_rank ? str(*e.local_rank) : "-", " at ", e.master_addr, ":",
             e.master_port ? str(*e.master_port) : "-", " job ", e.job_id,
             e.agent_store ? " agent store" : "");
}

std::string error_of(const Variables& variables) {
  try {
    return "no error: " + describe(detect(variables));
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.exit_code(), ExitCode::Usage);
    return error.what();
  }
}

Variables operator+(Variables a, const Variables& b) {
  for (const auto& [name, value] : b) a[name] = value;
  return a;
}

const Variables& plain() {
  static const Variables variables{
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};
  return variables;
}

const Variables& slurm() {
  static const Variables variables{{"SLURM_PROCID", "3"},
                                   {"SLURM_NTASKS", "4"},
                                   {"SLURM_LOCALID", "1"},
                                   {"SLURM_JOB_ID", "77"},
                                   {"SLURM_STEP_ID", "0"}};
  return variables;
}

const Variables& open_mpi() {
  static const Variables variables{{"OMPI_COMM_WORLD_RANK", "0"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                   {"PMIX_NAMESPACE", "prterun-1"}};
  return variables;
}

const Variables& mpich() {
  static const Variables variables{{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "0"}};
  return variables;
}

const Variables& master() {
  static const Variables variables{{"MASTER_ADDR", "[::1]"}, {"MASTER_PORT", "29500"}};
  return variables;
}

TEST(Environment, NothingSetIsASingleProcess) {
  EXPECT_EQ(describe(detect({})), "none: rank 0/1 local - at :- job ");
}

TEST(Environment, AMasterAloneIsNoLaunch) {
  EXPECT_EQ(detect({{"MASTER_ADDR", "node7"}, {"MASTER_PORT", "1"}}).kind, LauncherKind::Nobody);
}

TEST(Environment, PlainVariables) {
  EXPECT_EQ(describe(detect(plain())),
            "RANK and WORLD_SIZE: rank 1/2 local - at 10.0.0.1:29500 job ");
}

TEST(Environment, OwnLauncherWinsOverEverything) {
  const Variables own{{"PENSTOCK_CONTROL_FD", "5"}, {"PENSTOCK_JOB_ID", "j"}, {"LOCAL_RANK", "1"}};
  EXPECT_EQ(describe(detect(plain() + own + slurm() + open_mpi())),
            "penstock: rank 1/2 local 1 at 10.0.0.1:29500 job j");
}

TEST(Environment, TorchrunWinsOverSlurmThatStartedIt) {
  const Variables torchrun{{"TORCHELASTIC_RUN_ID", "run"}, {"LOCAL_RANK", "0"}};
  EXPECT_EQ(describe(detect(plain() + torchrun + slurm())),
            "torchrun: rank 1/2 local 0 at 10.0.0.1:29500 job run");
}

TEST(Environment, TorchrunsAgentStore) {
  const Variables torchrun{{"TORCHELASTIC_RUN_ID", "run"}};
  EXPECT_FALSE(detect(plain() + torchrun).agent_store);
  EXPECT_TRUE(
      detect(plain() + torchrun + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "True"}}).agent_store);
}

TEST(Environment, OpenMpiNeedsNoMaster) {
  EXPECT_EQ(describe(detect(open_mpi())), "Open MPI: rank 0/2 local 0 at :- job prterun-1");
}

TEST(Environment, OlderOpenMpiNamesItsJobElsewhere) {
  Variables variables = open_mpi() + Variables{{"OMPI_MCA_ess_base_jobid", "42"}};
  variables.erase("PMIX_NAMESPACE");
  EXPECT_EQ(detect(variables).job_id, "42");
}

TEST(Environment, SlurmStep) {
  EXPECT_EQ(describe(detect(slurm())), "Slurm: rank 3/4 local 1 at :- job 77.0");
}

TEST(Environment, AStepsOwnSizeWinsOverTheAllocations) {
  EXPECT_EQ(
      detect(slurm() + Variables{{"SLURM_NTASKS", "9"}, {"SLURM_STEP_NUM_TASKS", "4"}}).world_size,
      4);
}

TEST(Environment, ABareBatchScriptIsNotARank) {
  Variables variables = slurm();
  variables.erase("SLURM_STEP_ID");
  EXPECT_EQ(detect(variables).kind, LauncherKind::Nobody);
  EXPECT_EQ(detect(slurm() + Variables{{"SLURM_STEP_ID", "batch"}}).kind, LauncherKind::Nobody);
}

TEST(Environment, AScriptAroundSrunMayRepeatItsRanks) {
  const auto found = detect(plain() + slurm() + Variables{{"RANK", "3"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(describe(found), "Slurm: rank 3/4 local 1 at 10.0.0.1:29500 job 77.0");
}

TEST(Environment, MpiexecsRanksMeetAtTheMaster) {
  EXPECT_EQ(describe(detect(mpich() + master())), "mpiexec: rank 2/4 local 0 at ::1:29500 job ");
  const Variables mvapich{{"MV2_COMM_WORLD_RANK", "1"}, {"MV2_COMM_WORLD_SIZE", "3"}};
  EXPECT_EQ(describe(detect(mvapich + master())), "mpiexec: rank 1/3 local - at ::1:29500 job ");
  const Variables flux{{"FLUX_TASK_RANK", "1"}, {"FLUX_JOB_SIZE", "3"}};
  EXPECT_EQ(detect(flux + master()).kind, LauncherKind::OtherMpi);
}

TEST(Environment, AScriptAroundMpiexecMayRepeatItsRanks) {
  const Variables same{{"RANK", "2"}, {"WORLD_SIZE", "4"}};
  EXPECT_EQ(detect(mpich() + master() + same).kind, LauncherKind::OtherMpi);
}

TEST(Environment, AnAddressMayStandInBrackets) {
  EXPECT_EQ(detect(plain() + Variables{{"MASTER_ADDR", "[fd00::1]"}}).master_addr, "fd00::1");
  EXPECT_EQ(detect(plain() + Variables{{"MASTER_ADDR", "fd00::1"}}).master_addr, "fd00::1");
}

struct Shell {
  const char* name;
  Variables variables;
};

// What shells have of the launchers that started them, which launched no ranks.
class Shells : public testing::TestWithParam<Shell> {};

TEST_P(Shells, AreNoRanks) {
  const Variables& variables = GetParam().variables;
  EXPECT_EQ(describe(detect(variables)), "none: rank 0/1 local - at :- job ");
  EXPECT_EQ(describe(detect(variables + plain())),
            "RANK and WORLD_SIZE: rank 1/2 local - at 10.0.0.1:29500 job ");
}

// Of an allocation of four tasks.
Variables in_allocation(const Variables& more) {
  return Variables{{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"},
                   {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}, {"SLURM_NNODES", "2"}} +
         more;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, Shells,
    testing::Values(
        Shell{"Salloc", {{"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "4"}}},
        Shell{"BatchScript", in_allocation({})},
        Shell{"BatchStep", in_allocation({{"SLURM_STEP_ID", "batch"}})},
        Shell{"BatchStepByNumber", in_allocation({{"SLURM_STEP_ID", "4294967291"}})},
        Shell{"InteractiveStep",
              in_allocation({{"SLURM_STEP_ID", "4294967290"}, {"SLURM_STEP_NUM_TASKS", "1"}})},
        Shell{"InteractiveStepOfAnyTasks", in_allocation({{"SLURM_STEP_ID", "4294967290"}})},
        Shell{"ExternStep", in_allocation({{"SLURM_STEP_ID", "4294967292"}})},
        Shell{"SrunPty", in_allocation({{"SLURM_STEP_ID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}})},
        Shell{"SrunPtyOfPmix", in_allocation({{"SLURM_STEP_ID", "0"},
                                              {"SLURM_STEP_NUM_TASKS", "1"},
                                              {"PMIX_RANK", "0"}})},
        Shell{"Mpirun", {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}}},
        Shell{"MpirunInAnAllocation",  // Whose daemons srun has started.
              in_allocation({{"OMPI_COMM_WORLD_RANK", "0"},
                             {"OMPI_COMM_WORLD_SIZE", "1"},
                             {"SLURM_STEP_ID", "0"}})},
        Shell{"Mpiexec", {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}}},
        Shell{"Mvapich", {{"MV2_COMM_WORLD_RANK", "0"}, {"MV2_COMM_WORLD_SIZE", "1"}}},
        Shell{"Flux", {{"FLUX_TASK_RANK", "0"}, {"FLUX_JOB_SIZE", "1"}}}),
    [](const auto& test) { return test.param.name; });

struct BadCase {
  const char* name;
  Variables variables;
  const char* expected;
};

class BadEnvironment : public testing::TestWithParam<BadCase> {};

TEST_P(BadEnvironment, NamesWhatIsWrongWhatWasFoundAndWhatToRun) {
  const std::string error = error_of(GetParam().variables);
  EXPECT_NE(error.find(GetParam().expected), std::string::npos) << error;
  for (const auto& [name, value] : GetParam().variables) {
    EXPECT_NE(error.find(name + "=" + value), std::string::npos) << error;
  }
  EXPECT_NE(error.find("note: to start ranks on this machine: penstock train"), std::string::npos);
}

Variables without(Variables variables, const char* name) {
  variables.erase(name);
  return variables;
}

INSTANTIATE_TEST_SUITE_P(
    Cases, BadEnvironment,
    testing::Values(
        BadCase{"RankTooHigh", plain() + Variables{{"RANK", "5"}},
                "RANK=5 of WORLD_SIZE=2: ranks go from 0 to 1"},
        BadCase{"RankNegative", plain() + Variables{{"RANK", "-1"}},
                "RANK=-1: must be an integer in [0,"},
        BadCase{"RankNotInteger", plain() + Variables{{"RANK", "one"}}, "RANK=one: must be an int"},
        BadCase{"WorldSizeZero", plain() + Variables{{"WORLD_SIZE", "0"}},
                "WORLD_SIZE=0: must be an integer in [1,"},
        BadCase{"NoWorldSize", without(plain(), "WORLD_SIZE"), "WORLD_SIZE is not set"},
        BadCase{"NoRank", without(plain(), "RANK"), "RANK is not set"},
        BadCase{"NoPort", without(plain(), "MASTER_PORT"), "MASTER_PORT is not set, but RANK is"},
        BadCase{"NoAddress", without(plain(), "MASTER_ADDR"), "MASTER_ADDR is not set"},
        BadCase{"PortTooHigh", plain() + Variables{{"MASTER_PORT", "999999"}},
                "MASTER_PORT=999999: must be an integer in [1, 65535]"},
        BadCase{"LocalRank", plain() + Variables{{"LOCAL_RANK", "2"}},
                "LOCAL_RANK=2: must be an integer in [0, 1]"},
        BadCase{"TwoLaunchers", plain() + open_mpi(),
                "RANK=1 of 2, but OMPI_COMM_WORLD_RANK=0 of 2: two launchers disagree"},
        BadCase{"SlurmAndPlain", plain() + slurm(),
                "RANK=1 of 2, but SLURM_PROCID=3 of 4: two launchers disagree"},
        BadCase{"MpiWithoutSize", without(open_mpi(), "OMPI_COMM_WORLD_SIZE"),
                "OMPI_COMM_WORLD_SIZE is not set"},
        BadCase{"MpiexecWithoutMaster", without(mpich(), "MPI_LOCALRANKID"),
                "MASTER_ADDR is not set, but PMI_RANK is"},
        BadCase{
            "MpiexecWithoutSize", {{"MV2_COMM_WORLD_RANK", "1"}}, "MV2_COMM_WORLD_SIZE is not set"},
        BadCase{"MpiexecAndPlain", without(mpich() + plain(), "MPI_LOCALRANKID"),
                "RANK=1 of 2, but PMI_RANK=2 of 4: two launchers disagree"},
        BadCase{"PmixAlone", {{"PMIX_RANK", "3"}}, "does not say of how many"},
        BadCase{"TorchrunWithoutRank",
                without(plain(), "RANK") + Variables{{"TORCHELASTIC_RUN_ID", "x"}},
                "RANK is not set"}),
    [](const auto& test) { return test.param.name; });

std::string restarts_of(const Variables& variables) { return restart_count(lookup_in(variables)); }

TEST(RestartCount, IsThatOfTheNearestLauncher) {
  EXPECT_EQ(restarts_of({}), "0");
  EXPECT_EQ(restarts_of({{"SLURM_RESTART_COUNT", "3"}}), "3");
  EXPECT_EQ(restarts_of({{"SLURM_RESTART_COUNT", "3"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}), "2");
  EXPECT_EQ(restarts_of({{kRestartVariable, "1"}, {"TORCHELASTIC_RESTART_COUNT", "2"}}), "1");
}

}  // namespace
}  // namespace penstock::launch
