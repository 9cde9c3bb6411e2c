#include "penstock/runtime/train/device_messages.h"

#include <algorithm>
#include <cstdint>

namespace penstock::train {
namespace {

// Sums of a stage's gradients, in buckets as full as they may be.  Eight stand for any number: all
// that is under way at a time is in them.
std::vector<std::int32_t> sums_of_stages(const TrainerOptions& options,
                                         const std::vector<nn::LayerSpec>& layers,
                                         const partition::Partition& partition) {
  constexpr std::int64_t kElementBytes = 4, kSumsMax = 8;
  std::vector<std::int32_t> sums;
  for (StageId stage(0); stage.value < partition.stages(); ++stage.value) {
    std::int64_t elements = 0;
    for (std::int64_t i = partition.first_layer(stage); i < partition.end_layer(stage); ++i) {
      elements += layers[static_cast<std::size_t>(i)].meta.parameters;
    }
    const std::int64_t full = elements * kElementBytes / options.zero.bucket_bytes;
    sums.push_back(static_cast<std::int32_t>(std::min(full + 1, kSumsMax)));
  }
  return sums;
}

}  // namespace

lower::DeviceProof device_proof(const TrainerOptions& options,
                                const std::vector<nn::LayerSpec>& layers,
                                const partition::Partition& partition,
                                const verify::VerifiedSchedule& schedule,
                                const lower::Multiprocessors& multiprocessors) {
  lower::DeviceTraffic traffic{.sharing = {.stage = options.zero.stage,
                                           .ranks = options.mesh.size(mesh::Role::SameParameters)},
                               .sums = sums_of_stages(options, layers, partition)};
  lower::DeviceProof proof;
  for (const bool knows_forms : {false, true}) {
    traffic.knows_forms = knows_forms;
    proof = lower::prove(
        lower::device_order(schedule, partition, mesh::make_mesh(options.mesh), traffic),
        multiprocessors);
    if (!proof.objection.empty()) break;
  }
  return proof;
}

}  // namespace penstock::train
