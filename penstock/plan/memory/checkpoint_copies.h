// The copy of what a rank saves, from which a checkpoint is written while steps go on.
//
// pipe_memory.h counts it.  What a rank saves is train/training_state.h's decision, and which
// replica saves it is that of state_piece.h; here it is counted.  Knows no tensors.
// Units: bytes.
#pragma once
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/plan/memory/states.h"

namespace penstock::memory {

// The place of the copy, once there has been a save.
enum class Copies : std::uint8_t {
  Absent,        // The files are written from the tensors themselves, or there are no checkpoints.
  WithTensors,   // Lies in the memory in which the rank computes.
  InHostMemory,  // Lies in host memory, while the rank computes on a device.
};

// The copies of a run of this configuration on that device; Auto is taken for the host.
Copies copies_of(const config::Config& config, config::Device device);

// One of a rank's stages.
struct SavedStage {
  partition::Ownership ownership;
  std::int64_t buffers = 0;  // Bytes of its layers' buffers.
  std::set<std::string>
      tied_before;  // Names of tied parameters that an earlier stage has, and saves.
};

// Bytes that the replica copies which saves most.
std::int64_t copied_bytes(const std::vector<SavedStage>& stages, const Sharing& sharing);

}  // namespace penstock::memory
