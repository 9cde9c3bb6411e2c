#include <pybind11/pybind11.h>
#include <pybind11/typing.h>

#include "bindings/runtime/init.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using Dicts = py::typing::List<py::typing::Dict<py::str, py::object>>;
using Values = py::typing::List<py::typing::Tuple<py::object, py::ellipsis>>;

bool has_values(const py::dict& dict, const py::tuple& values) {
  if (dict.size() != values.size()) return false;
  py::ssize_t next = 0;
  for (const auto& item : dict) {
    if (item.second.ptr() != PyTuple_GET_ITEM(values.ptr(), next++)) return false;
  }
  return true;
}

bool have_values(const Dicts& dicts, const Values& values) {
  if (dicts.size() != values.size()) return false;
  for (std::size_t i = 0; i < dicts.size(); ++i) {
    if (!has_values(py::reinterpret_borrow<py::dict>(dicts[i]),
                    py::reinterpret_borrow<py::tuple>(values[i]))) {
      return false;
    }
  }
  return true;
}

}  // namespace

void init_module_slots(py::module_& m) {
  m.def("have_values", &have_values, py::arg("dicts"), py::arg("values"),
        "Whether dicts have these objects, in this order: in nanoseconds each.");
}

}  // namespace penstock::bindings
