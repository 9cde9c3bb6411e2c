#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <string>
#include <variant>

#include "bindings/planning/init.h"
#include "penstock/config/read.h"
#include "penstock/core/read_file.h"
#include "penstock/json/tree.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;

struct ToPython {
  py::object operator()(std::monostate) const { return py::none(); }
  template <class Scalar>
  py::object operator()(const Scalar& value) const {
    return py::cast(value);
  }
  py::object operator()(const json::Value::Array& values) const {
    py::list list;
    for (const json::Value& value : values) list.append(std::visit(*this, value.data));
    return list;
  }
  py::object operator()(const json::Value::Object& members) const {
    py::dict dict;
    for (const json::Member& member : members) {
      dict[py::str(member.key)] = std::visit(*this, member.value.data);
    }
    return dict;
  }
};

using Dict = py::typing::Dict<py::str, py::object>;

config::BatchSizes sizes_of(bool needs_sizes) {
  return needs_sizes ? config::BatchSizes::Needed : config::BatchSizes::NotNeeded;
}

}  // namespace

void init_configuration(py::module_& m) {
  m.def(
      "read_configuration",
      [](const std::string& file, bool needs_sizes) {
        const json::Value root = config::parse_initialize_config(
            {.name = file, .text = read_file("config", file, json::kBytesMax)},
            sizes_of(needs_sizes));
        return Dict(std::visit(ToPython{}, root.data));
      },
      py::arg("file"), py::arg("needs_sizes"),
      "The values of a file, whose keys and values are judged as `penstock config check` does.");
  m.def(
      "judge_configuration",
      [](const std::string& text, bool needs_sizes) {
        config::parse_initialize_config({.name = "config", .text = text, .is_file = false},
                                        sizes_of(needs_sizes));
      },
      py::arg("text"), py::arg("needs_sizes"), "The same of a text in JSON.");
}

}  // namespace penstock::bindings
