// What a rank has of a trained model between two steps, as pieces of tensors by name.
//
// get() and set() of a Trainer find a tensor so; saving/ saves and sets all of them.  The names are
// those of the whole model, so that ranks of another layout find theirs.  Knows no files.
#pragma once
#include <vector>

#include "penstock/runtime/train/state_piece.h"
#include "penstock/train/trainer.h"

namespace penstock::train {

// The state of this rank, in an order that replicas have in common.
std::vector<StatePiece> state_of(TrainedModel& trainer);

}  // namespace penstock::train
