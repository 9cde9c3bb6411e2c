#include "penstock/launch/unknown_launcher.h"

#include <array>

#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

struct Names {
  const char* rank;
  const char* world_size;
};
// Of MPICH and Intel MPI, MVAPICH2, PRRTE, Flux, HPE PALS, LSF's jsrun, and Cray ALPS.
constexpr std::array<Names, 6> kUnknown = {{
    {"PMI_RANK", "PMI_SIZE"},
    {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
    {"PMIX_RANK", "PRTE_NPROCS"},
    {"FLUX_TASK_RANK", "FLUX_JOB_SIZE"},
    {"PALS_RANKID", "PALS_SIZE"},
    {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
}};

}  // namespace

std::string unknown_rank(const VariableLookup& variable) {
  for (const Names& names : kUnknown) {
    const auto rank = variable(names.rank);
    const auto world_size = variable(names.world_size);
    if (!rank || !world_size || parse_integer(*world_size).value_or(0) < 2) continue;
    return str(names.rank, "=", *rank, " of ", names.world_size, "=", *world_size);
  }
  return {};
}

std::string note_on_launchers(const VariableLookup& variable) {
  const std::string rank = unknown_rank(variable);
  return str(rank.empty()
                 ? "if a launcher has started this process as a rank, it is not recognised"
                 : str("a launcher that is not recognised has started this process: ", rank),
             "; ranks are recognised of torchrun, Open MPI's mpirun, Slurm's srun, and by RANK, "
             "WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
}

}  // namespace penstock::launch
