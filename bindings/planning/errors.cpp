#include <pybind11/stl.h>

#include <exception>

#include "bindings/planning/init.h"
#include "penstock/core/error.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;

void raise_as(const char* name, const Error& error) {
  const py::object type = py::module_::import("penstock.errors").attr(name);
  const py::object value = type(error.message(), py::tuple(py::cast(error.notes())),
                                static_cast<int>(error.exit_code()));
  PyErr_SetObject(type.ptr(), value.ptr());
}

}  // namespace

void init_errors(py::module_&) {
  py::register_local_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const ConfigError& error) {
      raise_as("ConfigError", error);
    } catch (const ParseError& error) {
      raise_as("ParseError", error);
    } catch (const ScheduleError& error) {
      raise_as("ScheduleError", error);
    } catch (const Error& error) {
      raise_as("Error", error);
    }
  });
}

}  // namespace penstock::bindings
