// What a Trainer is made from, besides layers and a loss.
//
// A run fills it from its configuration (run/from_config.h), C++ users by hand.  A plain value.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "penstock/config/config.h"
#include "penstock/mesh/mesh.h"
#include "penstock/partition/partition.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/partition/part_runs.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/offload/place.h"
#include "penstock/runtime/parameters/zero_options.h"
#include "penstock/runtime/stage/stage.h"
#include "penstock/runtime/train/facts.h"
#include "penstock/runtime/train/microbatches.h"
#include "penstock/runtime/train/optimizer_options.h"
#include "penstock/runtime/train/precision.h"

namespace penstock::train {

using config::ZeroStage;
using parameters::GradientSums;
using parameters::ZeroOptions;

// The place of a rank's optimizer states and parameters while it does not use them.  The host
// updates those that are not on the device.
struct OffloadOptions {
  // Optimizer states, and masters of short types, between their updates.  Device: where what is
  // updated is.
  offload::Where states = {};
  // The rank's pieces of parameters under ZeroStage::Parameters, also with one data rank.
  offload::Where parameters = {};
  // Elements that are updated, or read ahead, together.
  std::int64_t elements_at_once = partition::kElementsAtOnce;
};

template <class Optimizer>
struct TrainerOptionsWith {
  mesh::Shape mesh = {};
  std::string schedule = "1f1b";                     // A registered name, unless `program` is set.
  std::string program = {};                          // Path of a program, CSV or JSON.
  std::optional<std::int32_t> stages_per_rank = {};  // Absent: as many as the schedule has.
  // Microbatches of a step and replica; a program of several replicas has all of them.
  std::int32_t microbatches = 1;
  partition::Method partition = partition::ByParameters{};
  Optimizer optimizer = {};
  config::SchedulerConfig scheduler = {};
  std::int64_t total_steps = 100;  // Length of the learning-rate schedule.
  // The learning rate of an update, by the number of updates before it, from 0; takes the place of
  // a scheduler.  Skipped steps do not count.  The same on all ranks.
  std::function<double(std::int64_t updates)> learning_rate = {};
  double gradient_clipping = 0.0;  // Largest global 2-norm; 0: none.
  LossScale loss_scale = {};       // A mean over samples, by default.
  Precision precision = {};
  GradientSums sums = GradientSums::AsTheyCome;
  ZeroOptions zero = {};
  OffloadOptions offload = {};
  stage::Checkpointing checkpointing = {};
  std::int64_t seed = 1234;
  c10::Device device = at::kCPU;  // Device of this rank's stages.
  // Hears what the trainer is at, from its construction on; outlives it.  Null: nobody is told.
  execute::Progress* progress = nullptr;
  // What else all ranks must have in common, by name: a hash of what they read themselves, say.
  Facts facts = {};
  // Ranks that have the same layers compare the weights that these begin with.  False: nobody has
  // written any, as on the virtual device (emulate/).
  bool compares_weights = true;
};

using TrainerOptions = TrainerOptionsWith<config::OptimizerConfig>;
// Options with `.optimizer = torch::optim::AdamOptions(1e-3)`, for a Trainer's constructor.
using TorchTrainerOptions = TrainerOptionsWith<TorchOptimizerOptions>;
TrainerOptions with_own_optimizer(const TorchTrainerOptions& options);

// Options with their defaults.  g++ 12 has to have seen them once: else it fails inside where a
// class has a Trainer as a member, `train::Trainer trainer{{}, layers, loss, *ranks};`.
inline TrainerOptions default_options() { return {}; }
inline TorchTrainerOptions default_torch_options() { return {}; }

// What says which program they train.
lower::ProgramOptions program_of(const TrainerOptions& options);

}  // namespace penstock::train
