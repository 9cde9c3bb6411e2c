// The programs of a run, by the names that a Trainer uses.
//
// trainer.cpp reads it; they are made in lower/programs.h.
#pragma once
#include "penstock/lower/programs.h"

namespace penstock::train {

using lower::forward_program;
using lower::ProgramOptions;
using lower::training_program;

}  // namespace penstock::train
