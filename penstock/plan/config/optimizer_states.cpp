#include "penstock/plan/config/optimizer_states.h"

namespace penstock::config {

std::int32_t states_per_parameter(const OptimizerConfig& options) {
  switch (options.type) {
    case OptimizerType::AdamW:
    case OptimizerType::Adam:
      return options.amsgrad ? 3 : 2;
    case OptimizerType::Sgd:
      return options.momentum == 0.0 ? 0 : 1;
  }
  return 0;
}

bool counts_steps(const OptimizerConfig& options) { return options.type != OptimizerType::Sgd; }

}  // namespace penstock::config
