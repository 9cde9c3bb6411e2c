// An exception of Python's on its way through C++: a stage's forward, a loss, a hook raised it.
//
// Those who call Python throw it; pipeline.cpp gives the original back to Python, and the other
// ranks get the text.
#pragma once
#include <pybind11/pybind11.h>

#include "penstock/core/error.h"

namespace penstock::bindings {

// The message is "ValueError: what it says (at line 12 of model.py, in forward)".
class PythonError : public Error {
 public:
  // REQUIRES: the GIL is held.
  explicit PythonError(const pybind11::error_already_set& original);

  const pybind11::error_already_set& original() const { return original_; }

 private:
  pybind11::error_already_set original_;
};

// Calls `function` with the GIL.
// Throws: PythonError for what it raises.
template <class Function>
auto with_gil(const Function& function) {
  const pybind11::gil_scoped_acquire gil;
  try {
    return function();
  } catch (const pybind11::error_already_set& error) {
    throw PythonError(error);
  }
}

// What is being handled, and `error` and its causes, back to Python: an exception of Python's as it
// was raised, with its traceback, and a note that says where penstock was.
// REQUIRES: the GIL is held.  Throws: pybind11::error_already_set, or what is being handled.
[[noreturn]] void rethrow_for_python();

}  // namespace penstock::bindings
