// Finds who started this process, and which rank it is, by the variables of seven kinds of
// launcher.
//
// Read once, at start-up, by cli/ and train/.  Everything is a function of the variables given, so
// that every rule is testable; only from_process_environment() reads the real ones.
// Does not open a socket and does not know the mesh.
//
// Rules, first match wins:
//   1. Own: PENSTOCK_CONTROL_FD, set by launcher.h.
//   2. Torchrun: TORCHELASTIC_RUN_ID.  Before Slurm and Open MPI, which may start one per node.
//   3. A job, of more than one rank, to which RANK and WORLD_SIZE may not say anything else:
//      Open MPI: OMPI_COMM_WORLD_RANK.
//      Slurm: SLURM_PROCID with the number of a step.  A batch script has none, and an interactive
//      shell one that Slurm gives to no step of ranks.
//      Other MPIs: PMI_RANK and the like, which come with no name of the job: MASTER_ADDR and
//      MASTER_PORT are required.
//      A job of one rank is a shell, or a program that starts its own ranks: it launched none.
//   4. Environment: RANK or WORLD_SIZE, set by hand.
//   5. None: a single process.
#pragma once
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/core/ids.h"

namespace penstock::launch {

enum class LauncherKind : std::uint8_t {
  Nobody,
  Own,
  Torchrun,
  OpenMpi,
  Slurm,
  OtherMpi,
  Environment
};

// "none", "penstock", "torchrun", "Open MPI", "Slurm", "mpiexec", "RANK and WORLD_SIZE".
std::string_view name_of(LauncherKind kind);
std::ostream& operator<<(std::ostream& out, LauncherKind kind);

struct LauncherEnvironment {
  LauncherKind kind = LauncherKind::Nobody;
  Rank rank;  // A number in [0, world_size).
  std::int32_t world_size = 1;
  std::optional<std::int32_t> local_rank;  // Position among the ranks of this host, when known.
  std::string master_addr;                 // Address of rank 0; empty: not told.
  std::optional<std::uint16_t> master_port;
  std::string job_id;        // Equal on all ranks of one run; empty: not told.
  bool agent_store = false;  // torchrun's agent serves the store, rank 0 included.
};

// The value of a variable, or nothing when it is not set.
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;

// Throws ConfigError when the variables contradict each other or one is missing or out of range;
// the text names the variables found, what is allowed, and what to run.
LauncherEnvironment detect_launcher(const VariableLookup& variable);

// detect_launcher over this process's own environment.  Throws ConfigError as above.
LauncherEnvironment from_process_environment();

// The variable by which penstock's launcher tells its ranks how often the run was started again.
inline constexpr const char* kRestartVariable = "PENSTOCK_RESTART_COUNT";

// How often the job was started again before this start, as its launcher says; "0" where none does.
std::string restart_count(const VariableLookup& variable);

// The lookup that from_process_environment uses.
std::optional<std::string> process_variable(const std::string& name);

}  // namespace penstock::launch
