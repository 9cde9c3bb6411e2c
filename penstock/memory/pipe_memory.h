// The memory of all ranks of a schedule, told from what single layers do: nothing runs.
//
// `penstock memory` measures the layers and asks it; `penstock plan` asks it for many layouts of
// one model.  Knows no tensors, and not where the layers' numbers came from.
// Units: bytes.
#pragma once
#include <cstdint>
#include <vector>

#include "penstock/core/ids.h"
#include "penstock/memory/checkpoint_copies.h"
#include "penstock/memory/layer_memory.h"
#include "penstock/memory/rank_memory.h"
#include "penstock/memory/states.h"
#include "penstock/mesh/mesh.h"
#include "penstock/partition/part_runs.h"
#include "penstock/partition/partition.h"
#include "penstock/partition/segment_ranges.h"
#include "penstock/verify/verify.h"

namespace penstock::memory {

// What they have in common.
struct PipeRun {
  const verify::VerifiedSchedule& schedule;  // A program with its messages.
  const partition::Partition& partition;
  mesh::Shape mesh;
  const partition::ModelMeta& model;
  const ModelMemory& memory;  // Of the model's layers, for a microbatch of the run's size.
  Sharing sharing;            // Among how many ranks, pipe_memory() finds out.
  partition::Recomputation recomputation = {};
  std::int64_t live_page_bytes_max = 0;  // With ZeRO 3: parameters that are whole at one time.
  std::int64_t elements_at_once = partition::kElementsAtOnce;  // That are updated together.
  std::int64_t batch_bytes = 0;  // What a rank holds of a step's inputs and targets.
  Copies copies = Copies::Absent;
};

struct PipeRank {
  std::vector<StageId> stages;
  RankMemory memory;
  std::int64_t file_bytes = 0;       // Of what is offloaded to files, and not in `memory`.
  std::int64_t host_copy_bytes = 0;  // Of Copies::InHostMemory, which are not in `memory`, too.
  std::vector<partition::Ownership> ownership;  // By stage: who has which parameter.
};

// By the schedule's rank, for the first replica; others have the same, but for at most a bucket's
// padding.
// Throws: ConfigError as partition::segment_ranges(); ScheduleError as lower::lower().
std::vector<PipeRank> pipe_memory(const PipeRun& run);

// What the ranks have of parameters, gradients and optimizer states alone: no less is there at any
// time of a step.  Takes no schedule, so that a layout can be refused before one is made.
// By rank, whose stages are `stages_of`.
std::vector<std::int64_t> state_bytes(const std::vector<std::vector<StageId>>& stages_of,
                                      const partition::Partition& partition,
                                      const ModelMemory& memory, const Sharing& sharing);

}  // namespace penstock::memory
