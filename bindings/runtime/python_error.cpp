#include "bindings/runtime/python_error.h"

#include <torch/csrc/Exceptions.h>

#include <exception>
#include <string>

#include "penstock/core/text.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;

std::string file_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

std::string describe(const py::error_already_set& error) {
  std::string text = py::str(error.type().attr("__name__"));
  if (const std::string what = py::str(error.value()); !what.empty()) text += ": " + what;
  py::object place = error.trace();
  if (!place || place.is_none()) return text;
  while (!place.attr("tb_next").is_none()) place = place.attr("tb_next");
  const py::object code = place.attr("tb_frame").attr("f_code");
  return str(text, " (at line ", place.attr("tb_lineno").cast<int>(), " of ",
             file_name(code.attr("co_filename").cast<std::string>()), ", in ",
             code.attr("co_name").cast<std::string>(), ")");
}

[[noreturn]] void raise(py::error_already_set original, const std::string& where) {
  const py::object value = original.value();
  // Python 3.10 has no notes.
  if (!where.empty() && py::hasattr(value, "add_note")) {
    value.attr("add_note")("penstock: " + where);
  }
  throw original;
}

// The words that lead to the cause: "rank 1, gpipe(...), instruction 3 (1F0)".
std::string without_cause(const std::string& text, const std::string& cause) {
  const std::size_t at = text.find(cause);
  if (at == std::string::npos || at < 2) return text;
  return text.substr(0, at - 2);  // Cuts off ": ".
}

void find_original(const std::exception& error, const std::string& where) {
  if (const auto* python = dynamic_cast<const PythonError*>(&error)) {
    raise(python->original(), without_cause(where, python->message()));
  }
  if (const auto* torch_python = dynamic_cast<const python_error*>(&error)) {
    python_error copy(*torch_python);
    copy.restore();
    raise(py::error_already_set(), without_cause(where, torch_python->what()));
  }
  try {
    std::rethrow_if_nested(error);
  } catch (const std::exception& cause) {
    find_original(cause, where.empty() ? error.what() : where);
  }
}

}  // namespace

PythonError::PythonError(const py::error_already_set& original)
    : Error(describe(original)), original_(original) {}

void rethrow_for_python() {
  PyErr_Clear();  // The engine leaves what it has thrown set, too.
  try {
    throw;
  } catch (const std::exception& error) {
    find_original(error, "");
    throw;
  }
}

}  // namespace penstock::bindings
