// The header penstock/saving/checkpoints.h by its earlier name, for one version.
//
// Programs that were written before include it; nothing of penstock does.
#pragma once
#include "penstock/saving/checkpoints.h"

namespace penstock::train {

using saving::CheckpointOptions;
using saving::Checkpoints;
using saving::Resumed;
using saving::SavedStep;

}  // namespace penstock::train
