#include "penstock/launch/environment.h"

#include <cstdlib>
#include <ostream>
#include <vector>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

constexpr std::int64_t kWorldSizeMax = 1 << 20;

// Every variable a rule may read, in the order in which an error lists them.
constexpr const char* kVariables[] = {
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_LOCALID",
    "SLURM_STEP_ID",
    "SLURM_JOB_ID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "PMIX_NAMESPACE",
    "PMI_RANK",
    "PMI_SIZE",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "FLUX_TASK_RANK",
    "FLUX_JOB_SIZE",
    "PMIX_RANK",
    "PENSTOCK_CONTROL_FD",
};

// The variables of one rule: names of rank, world size and local rank.
struct Names {
  const char* rank;
  const char* world_size;
  const char* local_rank;
};
constexpr Names kPlainNames = {"RANK", "WORLD_SIZE", "LOCAL_RANK"};
constexpr Names kMpiNames = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                             "OMPI_COMM_WORLD_LOCAL_RANK"};
constexpr Names kOtherMpiNames[] = {
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"},  // MPICH, Intel MPI.
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"},
    {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID"},
};

// Slurm's numbers of steps end here; those above mean a batch script, an interactive shell, ...
constexpr std::int64_t kSlurmStepMax = 0xfffffff0;

// "::1" of "[::1]", as addresses stand in front of a port.
std::string without_brackets(const std::string& address) {
  const bool has_both = address.starts_with('[') && address.ends_with(']');
  return has_both ? address.substr(1, address.size() - 2) : address;
}

class Detection {
 public:
  explicit Detection(const VariableLookup& variable) : variable_(variable) {}

  LauncherEnvironment detect() const {
    if (has("PENSTOCK_CONTROL_FD")) return own();
    if (has("TORCHELASTIC_RUN_ID")) return torchrun();
    std::optional<Job> found = job();
    if (found && found->ranks.world_size == 1) found.reset();
    if (has("RANK") || has("WORLD_SIZE")) return by_hand(found);
    if (!found) return {};
    if (found->ranks.kind == LauncherKind::OtherMpi) require_master(found->names.rank);
    return found->ranks;
  }

 private:
  // The ranks that another launcher has started, and by which variables it says so.
  struct Job {
    LauncherEnvironment ranks;
    Names names;
  };

  bool has(const char* name) const { return variable_(name).has_value(); }
  std::string value(const char* name) const { return variable_(name).value_or(""); }

  [[noreturn]] void fail(const std::string& message, std::vector<std::string> notes = {}) const {
    std::vector<std::string> found;
    for (const char* name : kVariables) {
      if (has(name)) found.push_back(str(name, "=", value(name)));
    }
    notes.insert(notes.begin(), "found " + join(found, ", "));
    notes.push_back(
        "to start ranks on this machine: penstock train CONFIG --nproc N; elsewhere torchrun, srun "
        "or mpirun set these variables");
    notes.push_back(str("to run a single process: env", unsetting(), " penstock train CONFIG"));
    throw ConfigError("environment: " + message, std::move(notes));
  }

  // " -u RANK -u WORLD_SIZE": what makes this process a rank.
  std::string unsetting() const {
    std::string words;
    for (const std::string name : kVariables) {
      const bool makes_a_rank = name.find("RANK") != std::string::npos || name == "WORLD_SIZE" ||
                                name == "SLURM_PROCID" || name == "TORCHELASTIC_RUN_ID";
      if (makes_a_rank && has(name.c_str())) words += " -u " + name;
    }
    return words;
  }

  std::int64_t integer(const char* name, std::int64_t low, std::int64_t high) const {
    if (!has(name)) fail(str(name, " is not set"));
    const auto parsed = parse_integer(value(name));
    if (!parsed || *parsed < low || *parsed > high) {
      fail(str(name, "=", value(name), ": must be an integer in [", low, ", ", high, "]"));
    }
    return *parsed;
  }

  LauncherEnvironment ranks(LauncherKind kind, const Names& names) const {
    LauncherEnvironment found;
    found.kind = kind;
    const std::int64_t world_size = integer(names.world_size, 1, kWorldSizeMax);
    found.world_size = static_cast<std::int32_t>(world_size);
    const std::int64_t rank = integer(names.rank, 0, kWorldSizeMax);
    if (rank >= world_size) {
      fail(str(names.rank, "=", rank, " of ", names.world_size, "=", world_size,
               ": ranks go from 0 to ", world_size - 1));
    }
    found.rank = Rank(static_cast<std::int32_t>(rank));
    if (has(names.local_rank)) {
      found.local_rank = static_cast<std::int32_t>(integer(names.local_rank, 0, world_size - 1));
    }
    if (has("MASTER_ADDR")) found.master_addr = without_brackets(value("MASTER_ADDR"));
    if (has("MASTER_PORT")) {
      found.master_port = static_cast<std::uint16_t>(integer("MASTER_PORT", 1, 65535));
    }
    return found;
  }

  void require_master(const char* because) const {
    for (const char* name : {"MASTER_ADDR", "MASTER_PORT"}) {
      if (value(name).empty()) fail(str(name, " is not set, but ", because, " is"));
    }
  }

  // Two launchers that both name a rank must name the same one.
  void require_same_rank(const LauncherEnvironment& a, const LauncherEnvironment& b,
                         const Names& a_names, const Names& b_names) const {
    if (a.rank == b.rank && a.world_size == b.world_size) return;
    fail(str(a_names.rank, "=", a.rank, " of ", a.world_size, ", but ", b_names.rank, "=", b.rank,
             " of ", b.world_size, ": two launchers disagree about this process"),
         {str("unset ", a_names.rank, " and ", a_names.world_size, ", or make them equal to ",
              b_names.rank, " and ", b_names.world_size)});
  }

  LauncherEnvironment own() const {
    require_master("PENSTOCK_CONTROL_FD");
    LauncherEnvironment found = ranks(LauncherKind::Own, kPlainNames);
    found.job_id = value("PENSTOCK_JOB_ID");
    return found;
  }

  LauncherEnvironment torchrun() const {
    require_master("TORCHELASTIC_RUN_ID");
    LauncherEnvironment found = ranks(LauncherKind::Torchrun, kPlainNames);
    found.job_id = value("TORCHELASTIC_RUN_ID");
    found.agent_store = value("TORCHELASTIC_USE_AGENT_STORE") == "True";
    return found;
  }

  LauncherEnvironment open_mpi() const {
    LauncherEnvironment found = ranks(LauncherKind::OpenMpi, kMpiNames);
    found.job_id =
        has("PMIX_NAMESPACE") ? value("PMIX_NAMESPACE") : value("OMPI_MCA_ess_base_jobid");
    return found;
  }

  bool in_slurm_step() const {
    const auto step = parse_integer(value("SLURM_STEP_ID"));
    return has("SLURM_PROCID") && step && *step < kSlurmStepMax;
  }

  Names slurm_names() const {
    const bool step_size = has("SLURM_STEP_NUM_TASKS");
    return {"SLURM_PROCID", step_size ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS", "SLURM_LOCALID"};
  }

  LauncherEnvironment slurm() const {
    LauncherEnvironment found = ranks(LauncherKind::Slurm, slurm_names());
    found.job_id = str(value("SLURM_JOB_ID"), ".", value("SLURM_STEP_ID"));
    return found;
  }

  std::optional<Job> job() const {
    if (has("OMPI_COMM_WORLD_RANK")) return Job{open_mpi(), kMpiNames};
    if (in_slurm_step()) return Job{slurm(), slurm_names()};
    for (const Names& names : kOtherMpiNames) {
      if (has(names.rank)) return Job{ranks(LauncherKind::OtherMpi, names), names};
    }
    const bool is_told_otherwise = has("RANK") || has("WORLD_SIZE");
    if (has("PMIX_RANK") && !has("SLURM_JOB_ID") && !is_told_otherwise) {
      fail(str("PMIX_RANK=", value("PMIX_RANK"),
               ": a launcher has started this rank, and does not "
               "say of how many"),
           {"set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"});
    }
    return std::nullopt;
  }

  LauncherEnvironment by_hand(const std::optional<Job>& job) const {
    const LauncherEnvironment found = ranks(LauncherKind::Environment, kPlainNames);
    if (!job) {
      require_master("RANK");
      return found;
    }
    require_same_rank(found, job->ranks, kPlainNames, job->names);
    if (job->ranks.kind == LauncherKind::OtherMpi) require_master(job->names.rank);
    return job->ranks;
  }

  const VariableLookup& variable_;
};

}  // namespace

std::string_view name_of(LauncherKind kind) {
  switch (kind) {
    case LauncherKind::Nobody:
      return "none";
    case LauncherKind::Own:
      return "penstock";
    case LauncherKind::Torchrun:
      return "torchrun";
    case LauncherKind::OpenMpi:
      return "Open MPI";
    case LauncherKind::Slurm:
      return "Slurm";
    case LauncherKind::OtherMpi:
      return "mpiexec";
    case LauncherKind::Environment:
      return "RANK and WORLD_SIZE";
  }
  return "?";
}

std::ostream& operator<<(std::ostream& out, LauncherKind kind) { return out << name_of(kind); }

LauncherEnvironment detect_launcher(const VariableLookup& variable) {
  return Detection(variable).detect();
}

std::string restart_count(const VariableLookup& variable) {
  for (const char* name : {kRestartVariable, "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"}) {
    if (const auto count = variable(name)) return *count;
  }
  return "0";
}

std::optional<std::string> process_variable(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

LauncherEnvironment from_process_environment() { return detect_launcher(process_variable); }

}  // namespace penstock::launch
