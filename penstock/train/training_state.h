// What a training run is between two steps, as tensors by name, each where its elements are.
//
// Checkpoints are made of it, and set it.  The names are those of the whole model, so that ranks of
// another layout find theirs.  Knows no files.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/checkpoint/manifest.h"
#include "penstock/train/trainer.h"

namespace penstock::train {

// What this rank has of a parameter, a buffer, or what the optimizer keeps of a parameter.
struct StatePiece {
  std::string name;
  std::string state;                // checkpoint::kWeight, or the optimizer's word.
  std::vector<std::int64_t> shape;  // Of the whole tensor.
  std::int64_t first = 0;           // Of its elements.
  // The run's own, from `first` on: set it, and the run has other values.  A master of a parameter
  // of a short type stands for the parameter.
  at::Tensor values;
  // Exactly one of the ranks that have these elements saves them.
  bool is_saved_here = false;
};

// Of this rank, in an order that replicas have in common.
std::vector<StatePiece> state_of(Trainer& trainer);

// Makes the optimizer's states of those parameters of which `is_known(name, state)` says so, which
// state_of() then has; those of others are as before a first step.
void make_states(Trainer& trainer,
                 const std::function<bool(std::string_view, std::string_view)>& is_known);

// Collective over the data ranks, when the tensors of state_of() were set: parameters become their
// masters, rounded, and what other ranks have set comes.
void take_over(Trainer& trainer);

// What a run goes on with besides tensors: the gradient scale, and how many steps it skipped.
checkpoint::Texts values_of(Trainer& trainer);
// Throws: CheckpointError for texts that are not such.
void set_values(Trainer& trainer, const checkpoint::Texts& values);

}  // namespace penstock::train
