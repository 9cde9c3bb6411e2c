// The memory of all ranks of a schedule, told from what single layers do: nothing runs.
//
// `penstock memory` measures the layers and asks it; `penstock plan` asks it for many layouts of
// one model.  Knows no tensors, and not where the layers' numbers came from.
// Units: bytes.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/memory/rank_memory.h"
#include "penstock/mesh/mesh.h"
#include "penstock/partition/partition.h"
#include "penstock/plan/memory/checkpoint_copies.h"
#include "penstock/plan/memory/layer_memory.h"
#include "penstock/plan/memory/states.h"
#include "penstock/plan/partition/part_runs.h"
#include "penstock/plan/partition/segment_ranges.h"
#include "penstock/verify/verify.h"

namespace penstock::memory {

// What they have in common.
struct PipeRun {
  const verify::VerifiedSchedule& schedule;  // A program with its messages.
  const partition::Partition& partition;
  mesh::Shape mesh;
  const partition::ModelMeta& model;
  const ModelMemory& memory;  // Memory of the model's layers, for a microbatch of the run's size.
  Sharing sharing;            // Rules; pipe_memory() finds out among how many ranks.
  partition::Recomputation recomputation = {};
  std::int64_t live_page_bytes_max = 0;  // ZeRO 3: parameters that are whole at one time.
  std::int64_t elements_at_once = partition::kElementsAtOnce;  // Elements updated together.
  std::int64_t batch_bytes = 0;  // What a rank holds of a step's inputs and targets.
  Copies copies = Copies::Absent;
};

struct PipeRank {
  std::vector<StageId> stages;
  RankMemory memory;
  std::int64_t file_bytes = 0;  // Bytes offloaded to files, and not in `memory`.
  // Bytes of Copies::InHostMemory, which are not in `memory`, too.
  std::int64_t host_copy_bytes = 0;
  std::vector<partition::Ownership> ownership;  // Holders of parameters, by stage.
};

// Memory by the schedule's rank, for the first replica.  Other replicas differ by at most a
// bucket's padding.
// Throws: ConfigError as partition::segment_ranges(); ScheduleError as lower::lower().
std::vector<PipeRank> pipe_memory(const PipeRun& run);

// What a forward of one microbatch leaves of a stage for its backward, without an output that is
// the next stage's. Throws: ConfigError as partition::segment_ranges().
std::int64_t kept_bytes(const partition::ModelMeta& model, const ModelMemory& memory,
                        const partition::Partition& partition,
                        const partition::Recomputation& recomputation, StageId stage);

}  // namespace penstock::memory
