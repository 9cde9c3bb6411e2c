// The parts of the extension module penstock._runtime: a function per area, each in its own file.
//
// They say what Python sees of the layers below the torch line, and hold no logic.  Built against
// one version of torch, whose pybind11 they share, so that tensors and stores pass between modules.
#pragma once
#include <pybind11/pybind11.h>

namespace penstock::bindings {

void init_communicator(pybind11::module_& m);
void init_agreement(pybind11::module_& m);     // What ranks must have in common.
void init_pipeline(pybind11::module_& m);      // Programs over stages that are Python's.
void init_emulate(pybind11::module_& m);       // Steps on devices that are not there.
void init_trainer(pybind11::module_& m);       // Models of `penstock train`.
void init_checkpoint(pybind11::module_& m);    // What is saved of a run, and read.
void init_module_slots(pybind11::module_& m);  // What modules have in them.
void init_update(pybind11::module_& m);        // What makes new parameters of gradients.
void init_replica(pybind11::module_& m);  // Modules of Python's, replicated or spread over ranks.

}  // namespace penstock::bindings
