// The bytes of a stage's parameters, gradients and optimizer states on one rank, under ZeRO or not.
//
// Whoever tells a rank's memory adds them up by stage.  Who has what is partition/ownership.h's;
// here it is counted, as parameters/ and update/ lay it out.  Knows no schedule and
// no activations.
// Units: bytes.  Source: ZeRO (arXiv 1910.02054, table 1), with the padding of buckets.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "penstock/partition/ownership.h"
#include "penstock/plan/memory/stage_memory.h"
#include "penstock/plan/partition/persistence.h"

namespace penstock::memory {

// Bytes of an element in float: the type of bf16's and fp16's masters, which the optimizer updates
// and a checkpoint has.
inline constexpr std::int64_t kMasterBytes = 4;

struct Sharing {
  partition::SharingRules rules;
  // Ranks that have the same experts; 0: as many as have the same of everything else.
  std::int32_t expert_ranks = 0;
  // Ranks among which ZeRO cuts, of those that have the same parameters; the others have copies of
  // what these have.  0: all.
  std::int32_t shards = 0;
  std::int32_t place = 0;  // Number of this rank in the data group.
  // States of the optimizer, each of the type that it updates.
  std::int32_t states_per_element = 2;
  std::int64_t state_bytes_per_part = 4;  // Besides: AdamW's count of steps.
  bool has_states_in_file = false;        // States are in a file, but for that count.
  bool has_pieces_in_file = false;        // Pieces of parameters that come and go are in a file.
  partition::PersistenceLimits persistence;
};

// What the earlier stages of a rank have.
struct Earlier {
  explicit Earlier(const Sharing& sharing) : persistence(sharing.persistence) {}

  std::set<std::string> names;  // Names of parameters that are there once.
  partition::Persistence persistence;
};

// What is there all the time, from the second step on.
struct States {
  partition::Ownership ownership;
  std::optional<partition::Ownership> expert_ownership;  // Ownership of experts, where some are.
  // Whole, or, with ZeRO 3, this rank's pieces, unless in a file, and what stays whole.
  std::int64_t parameters = 0;
  std::int64_t pages = 0;      // ZeRO 3: parameters that come and go, if all were there at once.
  std::int64_t gradients = 0;  // This rank's sums, or the buckets in which they are summed.
  std::int64_t optimizer = 0;
  std::int64_t file = 0;  // Bytes of states and pieces in files, which are then not in memory.
  // Bytes of gradients in float, by part that the optimizer updates, there while it is updated; 0:
  // the part has no master.
  std::vector<std::int64_t> master_gradients;
  std::vector<GradientBucket> buckets;  // Taken over by StageLayers, as the next is.
  std::optional<std::size_t> sums_under_way = {};
};

// Bytes of the modules' buffers.
std::int64_t buffer_bytes(const std::vector<LayerMemory>& layers);

// The same rules for experts.
Sharing of_experts(const Sharing& sharing);

// States of one stage.  `earlier` learns what this one has.
States states_of(const std::vector<LayerMemory>& layers, const Sharing& sharing, Earlier& earlier);

}  // namespace penstock::memory
