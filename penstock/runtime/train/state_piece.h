// Pieces of what a rank trains: some elements of a tensor, by the tensor's name in the whole model.
//
// A Trainer's are made in training_state.h, those of a Python engine by the engine; saving/ writes
// and sets them.  Names know no layout, so ranks of another one find theirs.  Knows no files.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/core/box.h"
#include "penstock/plan/partition/cut.h"

namespace penstock::train {

// What this rank has of a parameter, a buffer, or what the optimizer keeps of a parameter.
struct StatePiece {
  std::string name;
  std::string state;       // checkpoint::kWeight, or the optimizer's word.
  Sizes shape;             // Shape of the whole tensor.
  Box box = {};            // The part that is cut out for this rank; none: all of it.
  std::int64_t first = 0;  // Index among the box's elements.
  // The run's own, from `first` on: set it, and the run has other values.  A master of a parameter
  // of a short type stands for the parameter.
  at::Tensor values;
  // False: each replica has all elements; true: other replicas have the others.
  bool is_slice = false;
  // Whether this rank saves it.  At first: whether its replicas do; share_out() leaves one of them.
  bool is_saved_here = true;

  Region region() const { return {.box = box, .first = first, .count = values.numel()}; }
  bool has_first_element() const { return first == 0 && penstock::has_first_element(box); }
};

// The weight of a parameter of these sizes, which is whole or the part of a cut.  `values` are
// those of it that this rank has: the parameter itself may be away (ZeroStage::Parameters).
StatePiece weight_of(std::string name, at::IntArrayRef sizes, const partition::Cut& cut,
                     const at::Tensor& values);

// Leaves one rank that saves each piece, of `replicas` that have the same pieces, or slices of the
// same, in the same order; this one is number `here`.  What all have goes to the one that saves the
// fewest bytes so far.  A name and state that come again are copies, which nobody saves.
void share_out(std::vector<StatePiece>& pieces, std::int32_t replicas, std::int32_t here);

}  // namespace penstock::train
