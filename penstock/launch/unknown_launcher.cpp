#include "penstock/launch/unknown_launcher.h"

#include <array>

#include "penstock/core/text.h"

namespace penstock::launch {
namespace {

struct LauncherNames {
  const char* rank;
  const char* world_size;
};
// Variables of HPE's PALS, and of LSF's jsrun.
constexpr std::array<LauncherNames, 2> kUnknown = {{
    {"PALS_RANKID", "PALS_SIZE"},
    {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
}};

}  // namespace

std::string unknown_rank(const VariableLookup& variable) {
  for (const LauncherNames& names : kUnknown) {
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
             "; ranks are recognised of torchrun, Open MPI's mpirun and Slurm's srun, and, with "
             "MASTER_ADDR and MASTER_PORT, by RANK and WORLD_SIZE and of MPICH, Intel MPI, "
             "MVAPICH and Flux");
}

}  // namespace penstock::launch
