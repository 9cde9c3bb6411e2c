// A step of a program's own model on devices that are not there.
//
// The ranks are threads.  Each makes its layers and a Trainer of them, as in a run, and takes two
// steps on a virtual device; the second one is told.  Seconds are estimates, counts and bytes are
// those of the real thing (docs/emulate.md).
//
//   const emulate::Report report = emulate::emulate(
//       {.options = {.mesh = {.pipe = 2}, .microbatches = 4}, .layers = layers, .loss = loss,
//        .inputs = inputs, .targets = targets},
//       devices::device_model("h100-sxm"));
//
// The devices are CUDA's to torch, which has to be one for CPUs.  Layers are made in host memory,
// one at a time.
// Thread safety: calls of several threads take turns.
#pragma once
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "penstock/emulate/report.h"
#include "penstock/nn/layer.h"
#include "penstock/plan/devices/device_model.h"
#include "penstock/train/trainer_options.h"

namespace penstock::emulate {

struct Step {
  // There are as many ranks as options.mesh has.  `device`, `progress` and `compares_weights` are
  // emulate()'s own.
  train::TrainerOptions options = {};
  std::vector<nn::LayerSpec> layers = {};
  nn::Loss loss = {};
  // A replica's batch, as for Trainer::step(), in host memory; every replica takes the same.
  nn::Values inputs = {}, targets = {};
  // What all values of tensors are to a layer or the loss that reads some in the host, as
  // tensor.item() and tensor.cpu() do.  Absent: that is an error, since a virtual device has none.
  std::optional<double> value_read = {};
  // A folder for what `penstock report` shows of one more step, made if need be.  Empty: none.
  std::string folder = {};
  // Asked for a stop, emulate() ends with an Error.
  std::stop_token stop = {};
  // Hears of each phase of more than a moment, on some thread.
  std::function<void(const std::string&)> said = {};
};

// Throws: what the Trainer's constructor and step() throw; ConfigError where torch is built for
// CUDA, for more than 127 ranks, and for a folder that cannot be made; CheckpointError for files in
// it that cannot be written; Error for an operator whose result has an unknown shape, for values
// that are read, and where a device's memory does not do.
Report emulate(const Step& step, const devices::DeviceModel& device);

}  // namespace penstock::emulate
