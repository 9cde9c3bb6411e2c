#include "penstock/plan/partition/method.h"

namespace penstock::partition {

Method method_of(const config::PipelineConfig& pipeline) {
  switch (pipeline.partition) {
    case config::PartitionMethod::Uniform:
      return Uniform{};
    case config::PartitionMethod::Parameters:
      return ByParameters{};
    case config::PartitionMethod::LayerCost:
      return ByCost{pipeline.layer_costs};
    case config::PartitionMethod::Bounds:
      return ByBounds{pipeline.bounds};
    case config::PartitionMethod::TypeRegex:
      return ByType{pipeline.type_regex};
  }
  return {};
}

}  // namespace penstock::partition
