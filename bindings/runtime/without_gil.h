// Runs C++ that may wait for other ranks, and may call Python.
//
// Bindings of what waits use it.  Ctrl-C ends the wait, on all ranks; what Python raised on the way
// comes back as it was.  Knows no operations.
#pragma once
#include <pybind11/pybind11.h>

#include "bindings/runtime/python_error.h"
#include "bindings/runtime/sigint_watch.h"

namespace penstock::bindings {

template <class Function>
auto without_gil(comm::Communicator& communicator, const Function& function) {
  const SigintWatch watch(communicator);
  try {
    const pybind11::gil_scoped_release released;
    return function();
  } catch (...) {
    if (watch.interrupted() && PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
    rethrow_for_python();
  }
}

}  // namespace penstock::bindings
