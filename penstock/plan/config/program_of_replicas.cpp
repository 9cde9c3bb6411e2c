#include "penstock/plan/config/program_of_replicas.h"

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::config {
namespace {

constexpr const char* kWhat = "the schedule is a program of several replicas, and ";

}  // namespace

void check_programs(mesh::Programs programs, ZeroStage stage) {
  if (programs == mesh::Programs::Alike) return;
  if (stage == ZeroStage::Parameters) {
    throw ConfigError(
        str(kWhat, "zero_optimization.stage is 3: its ranks do not use parameters together"),
        {"set zero_optimization.stage to 0, 1 or 2"});
  }
}

void check_uneven_ties(ZeroStage stage) {
  if (stage == ZeroStage::Off) return;
  throw ConfigError(str(kWhat, "zero_optimization.stage is ", number_of(stage),
                        ": the ranks of tied layers would cut them differently"),
                    {"set zero_optimization.stage to 0, or do not tie layers"});
}

void check_programs(mesh::Programs programs, const Config& config) {
  check_programs(programs, config.zero_optimization.stage);
  if (programs == mesh::Programs::Alike) return;
  if (const std::int32_t sharers = asked_shape(config.mesh)[mesh::Axis::Tensor]; sharers > 1) {
    throw ConfigError(str(kWhat, "mesh.tensor is ", sharers, ": its ranks have whole layers"),
                      {"set mesh.tensor to 1"});
  }
  if (!config.schedule.adapt) return;
  throw ConfigError(str(kWhat, "schedule.adapt is true: no other program can take its place"),
                    {"set schedule.adapt to false"});
}

}  // namespace penstock::config
