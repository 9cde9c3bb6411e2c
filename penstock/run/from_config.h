// The model and the options of a run, as its configuration says them.
//
// A run makes its Trainer of them, and its memory is told of them.  Knows no data and no files.
#pragma once
#include <vector>

#include "penstock/config/config.h"
#include "penstock/config/resolve.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

std::vector<nn::LayerSpec> model_of(const config::ModelConfig& model);

train::TrainerOptions options_of(const config::Config& config, const mesh::Shape& mesh,
                                 const config::Batch& batch);

}  // namespace penstock::run
