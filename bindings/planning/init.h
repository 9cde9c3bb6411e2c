// The parts of the extension module penstock._planning: a function per area, each in its own file.
//
// They say what Python sees of the planning layers, and hold no logic: what is missing in C++ is
// written there, and words for people are in python/penstock.  Nothing here knows torch.
#pragma once
#include <pybind11/pybind11.h>

namespace penstock::bindings {

void init_errors(pybind11::module_& m);     // penstock::Error as the classes of penstock.errors.
void init_files(pybind11::module_& m);      // Files that are replaced, folders that are kept.
void init_schedule(pybind11::module_& m);   // Schedules and their generators.
void init_passes(pybind11::module_& m);     // Passes, single actions, torch's tables.
void init_verify(pybind11::module_& m);     // Options, verdicts, diagnostics.
void init_simulate(pybind11::module_& m);   // Costs, simulations, their pictures.
void init_search(pybind11::module_& m);     // Searches, and what they find.
void init_deepspeed(pybind11::module_& m);  // Clock, steps, stepped schedules.
void init_learning_rate(pybind11::module_& m);  // Courses of the learning rate.
void init_partition(pybind11::module_& m);      // Layers to stages.
void init_configuration(pybind11::module_& m);  // What penstock.initialize reads.

}  // namespace penstock::bindings
