#include "penstock/plan/config/whole_layers.h"

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::config {

void require_whole_layers(const Config& config, std::string_view who) {
  const std::int32_t sharers = asked_shape(config.mesh)[mesh::Axis::Tensor];
  if (sharers == 1) return;
  throw ConfigError(str(who, ": mesh.tensor = ", sharers, ": it knows no layers that ranks share"),
                    {"with --set mesh.tensor=1 each rank has whole layers",
                     "penstock train, evaluate, generate, emulate, memory and plan take layers "
                     "that ranks share"});
}

}  // namespace penstock::config
