// penstock::Error as the Python classes of penstock.errors, for every extension module.
//
// A module's init calls translate_errors(); knows no other exceptions.
#pragma once
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>

#include "penstock/core/error.h"

namespace penstock::bindings {

inline void raise_as(const char* name, const Error& error) {
  namespace py = pybind11;
  const py::object type = py::module_::import("penstock.errors").attr(name);
  const py::object value = type(error.message(), py::tuple(py::cast(error.notes())),
                                static_cast<int>(error.exit_code()));
  PyErr_SetObject(type.ptr(), value.ptr());
}

// Translates errors in the module that is being initialised.
inline void translate_errors() {
  pybind11::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const ConfigError& error) {
      raise_as("ConfigError", error);
    } catch (const ParseError& error) {
      raise_as("ParseError", error);
    } catch (const ScheduleError& error) {
      raise_as("ScheduleError", error);
    } catch (const CommError& error) {
      raise_as("CommError", error);
    } catch (const CheckpointError& error) {
      raise_as("CheckpointError", error);
    } catch (const Error& error) {
      raise_as("Error", error);
    }
  });
}

}  // namespace penstock::bindings
