// One piece of a rank's state in a checkpoint: whether it is there, as it was written, and its
// values.
//
// checkpoints.h reads a Trainer's pieces so, and a Python engine its own.  Knows no ranks.
#pragma once
#include <functional>

#include "penstock/checkpoint/saved_checkpoint.h"
#include "penstock/core/error.h"
#include "penstock/files/checkpoint/manifest.h"
#include "penstock/runtime/train/state_piece.h"

namespace penstock::saving {

// A checkpoint that is as it was written, and not of this model.
class MisfitError : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

// Throws: MisfitError where the checkpoint does not have the piece's tensor, or in another shape.
void check_fits(const checkpoint::Manifest& manifest, const train::StatePiece& piece);
// Compares what the piece needs with its digests, and sets nothing.
// Throws: as check_fits(); CheckpointError as SavedCheckpoint::read().
void verify_piece(checkpoint::SavedCheckpoint& saved, const train::StatePiece& piece,
                  const std::function<void()>& advanced = {});
// Sets the piece's values.  Throws: as verify_piece().
void read_piece(checkpoint::SavedCheckpoint& saved, const train::StatePiece& piece,
                const std::function<void()>& advanced = {});

}  // namespace penstock::saving
