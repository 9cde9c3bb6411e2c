#include "penstock/plan/config/whole_layers.h"

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"

namespace penstock::config {

void require_whole_layers(const Config& config, std::string_view who, std::string_view why,
                          const std::vector<std::string>& instead) {
  const std::int32_t sharers = asked_shape(config.mesh)[mesh::Axis::Tensor];
  if (sharers == 1) return;
  throw ConfigError(str(who, ": mesh.tensor = ", sharers, ": ", why), instead);
}

}  // namespace penstock::config
