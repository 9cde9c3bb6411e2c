#include "penstock/runtime/parameters/zero_options.h"

#include "penstock/core/error.h"

namespace penstock::parameters {

void check(const ZeroOptions& zero, const offload::Where& pieces) {
  if (pieces.place != offload::Place::Device && zero.stage != ZeroStage::Parameters) {
    throw ConfigError(
        "offloaded parameters need ZeroStage::Parameters: else they are always whole");
  }
}

partition::SharingRules sharing_rules(const ZeroOptions& zero, const offload::Where& pieces,
                                      std::int32_t ranks, c10::Device device) {
  // Where ranks compute on the host, what is in its memory is nowhere else.
  const bool are_elsewhere = pieces.place == offload::Place::File ||
                             (pieces.place == offload::Place::Host && !device.is_cpu());
  return {.stage = zero.stage,
          .ranks = ranks,
          .bucket_bytes = zero.bucket_bytes,
          .one_rank_has_pieces = are_elsewhere};
}

}  // namespace penstock::parameters
