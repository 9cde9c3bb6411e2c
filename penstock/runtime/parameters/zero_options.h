// What a data group shares of its parameters.
//
// TrainerOptions and ReplicaOptions have them.  Knows no parameters.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>

#include "penstock/partition/ownership.h"
#include "penstock/plan/paging/policy.h"
#include "penstock/plan/partition/persistence.h"
#include "penstock/runtime/offload/place.h"

namespace penstock::parameters {

using config::ZeroStage;

// Options of ZeRO.  One data rank has nothing to share, but may offload.
struct ZeroOptions {
  ZeroStage stage = ZeroStage::Off;
  std::int64_t bucket_bytes = partition::kBucketBytes;  // Reduced, or gathered, at one time.
  // Limits of stage 3: parameters that are whole on a rank at one time, and how far ahead it looks.
  paging::Limits limits = {.budget_bytes = std::int64_t{1} << 32,
                           .prefetch_bytes = std::int64_t{200} << 20};
  partition::PersistenceLimits persistence = {};  // Parameters that are always whole in stage 3.
};

// The order in which a step's gradients are added.
enum class GradientSums : std::uint8_t {
  AsTheyCome,  // Added as the program runs, then over the replicas: fastest.
  Invariant,   // Added by the microbatches' numbers: the same bits for every number of replicas.
};

// Throws: ConfigError, where these do not go together: pieces that are elsewhere, and parameters
// that are always whole.
void check(const ZeroOptions& zero, const offload::Where& pieces);

// The rules of a data group with so many ranks that compute on `device`.
partition::SharingRules sharing_rules(const ZeroOptions& zero, const offload::Where& pieces,
                                      std::int32_t ranks, c10::Device device);

}  // namespace penstock::parameters
