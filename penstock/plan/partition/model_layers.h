// The layers of a configuration's model, as far as they are known before one is made.
//
// The launcher cuts them into stages before a process starts, so that a cut which no rank can make
// is refused at once.  nn/ makes the layers; the tests hold this to what it makes.
#pragma once
#include "penstock/config/config.h"
#include "penstock/plan/partition/layer_meta.h"

namespace penstock::partition {

// The layers' types, in forward order; without names and sizes.  Empty where they are not known: of
// a folder whose config.json cannot be read, which the ranks tell, or says no number of layers.
ModelMeta known_layers(const config::ModelConfig& model);

}  // namespace penstock::partition
