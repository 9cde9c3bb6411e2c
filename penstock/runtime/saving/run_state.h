// What a run goes on with: the values beside its tensors, and what follows when tensors were set.
//
// checkpoints.h saves and sets it.  The tensors themselves: train/training_state.h.  Knows no
// files.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/files/checkpoint/manifest.h"
#include "penstock/runtime/update/gradient_scale.h"
#include "penstock/train/trainer.h"

namespace penstock::saving {

// Makes the optimizer's states of those parameters of which `is_known(name, state)` says so, which
// train::state_of() then has; those of others are as before a first step.
void make_states(train::Trainer& trainer,
                 const std::function<bool(std::string_view, std::string_view)>& is_known);

// Collective over the data ranks, when the tensors of train::state_of() were set: parameters become
// their masters, rounded, and what other ranks have set comes.
void take_over(train::Trainer& trainer);

// What a run goes on with besides tensors: the gradient scale, how many steps it skipped, and its
// program, if that has changed.
checkpoint::Texts values_of(train::Trainer& trainer);

// Texts of a program's own, by names of its own, as one value among those; and back.
// Throws: CheckpointError for a text that is not UTF-8.
void put_client_state(checkpoint::Texts& values, const checkpoint::Texts& client_state);
// Empty where there is none.
checkpoint::Texts client_state_in(const checkpoint::Texts& values);

// The same, read: all of it, so that nothing stays of what was there before.
struct RunValues {
  std::int64_t skipped_steps = 0;
  std::optional<update::GradientScale::State> gradient_scale;  // Absent: as at the begin of a run.
  std::string program;                                         // Empty: that of the layout.
};
// Throws: CheckpointError for texts that are not such.
RunValues read_values(const checkpoint::Texts& values);
void set_values(train::Trainer& trainer, const RunValues& values);

}  // namespace penstock::saving
