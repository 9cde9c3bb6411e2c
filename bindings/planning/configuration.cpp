#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/planning/init.h"
#include "penstock/config/read.h"
#include "penstock/core/json/tree.h"
#include "penstock/core/read_file.h"
#include "penstock/plan/config/effects.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/plan/config/write.h"
#include "penstock/plan/lower/programs.h"

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

config::ReadInitializeConfig read(const std::string& name, std::string text, bool is_file,
                                  bool needs_sizes) {
  return config::parse_initialize_config(
      {.name = name,
       .text = std::move(text),
       .kind = is_file ? json::SourceKind::File : json::SourceKind::Values},
      lower::objection_to_training,
      needs_sizes ? config::BatchSizes::Needed : config::BatchSizes::NotNeeded);
}

Dict values_of(const config::ReadInitializeConfig& read) {
  return Dict(std::visit(ToPython{}, read.root.data));
}

std::vector<std::string> warnings_of(const config::ReadInitializeConfig& read, bool is_pipeline,
                                     bool has_optimizer, bool has_scheduler) {
  using config::RunFact;
  return config::warnings_of(config::ineffective_keys(read.config, read.origins,
                                                      {{RunFact::IsPipeline, is_pipeline},
                                                       {RunFact::HasNoOptimizer, !has_optimizer},
                                                       {RunFact::HasAnOptimizer, has_optimizer},
                                                       {RunFact::HasNoScheduler, !has_scheduler}}));
}

}  // namespace

void init_configuration(py::module_& m) {
  py::class_<config::ReadInitializeConfig>(
      m, "ReadConfiguration",
      "A configuration whose keys and values were judged as `penstock config check` does.")
      .def_property_readonly("values", values_of,
                             "All that it says; arguments of classes as the class takes them.")
      .def_property_readonly(
          "settings",
          [](const config::ReadInitializeConfig& read) { return config::to_text(read.config); },
          "JSON: every key that engines use, with its default where it is not given.")
      .def(
          "batch",
          [](const config::ReadInitializeConfig& read, std::int64_t replicas) {
            const auto batch = config::resolve_batch(read.config.config.batch, replicas);
            return std::tuple(batch.train_batch_size, batch.micro_batch_size, batch.microbatches);
          },
          py::arg("replicas"), "Samples of a step, samples of a microbatch, microbatches.")
      .def("warnings", warnings_of, py::kw_only(), py::arg("is_pipeline"), py::arg("has_optimizer"),
           py::arg("has_scheduler"),
           "A line for each reason why keys have no effect on such an engine.");
  m.def(
      "read_configuration",
      [](const std::string& file, bool needs_sizes) {
        return read(file, read_file("config", file, json::kBytesMax), true, needs_sizes);
      },
      py::arg("file"), py::arg("needs_sizes"), "The configuration in a file.");
  m.def(
      "parse_configuration",
      [](const std::string& text, bool needs_sizes) {
        return read("config", text, false, needs_sizes);
      },
      py::arg("text"), py::arg("needs_sizes"), "The same of a text in JSON.");
}

}  // namespace penstock::bindings
