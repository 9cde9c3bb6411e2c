// What a run's ranks would give their devices, proved before a layer is made.
//
// Knows layers by the number of their parameters; penstock verify asks, and tests of devices do.
#pragma once
#include <vector>

#include "penstock/plan/lower/device_proof.h"
#include "penstock/runtime/nn/model.h"
#include "penstock/train/trainer_options.h"

namespace penstock::train {

// REQUIRES: counted layers that no ranks share, and a schedule of one replica for the options'
// mesh.
lower::DeviceProof device_proof(const TrainerOptions& options,
                                const std::vector<nn::LayerSpec>& layers,
                                const partition::Partition& partition,
                                const verify::VerifiedSchedule& schedule,
                                const lower::Multiprocessors& multiprocessors = {});

}  // namespace penstock::train
