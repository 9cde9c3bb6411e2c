#include "penstock/partition/partition.h"

#include <pybind11/stl.h>

#include <vector>

#include "bindings/planning/init.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;

std::vector<std::int64_t> bounds_of(std::size_t layers, std::int32_t stages,
                                    const partition::Method& method) {
  return partition::partition(partition::ModelMeta(layers), stages, method).bounds;
}

}  // namespace

void init_partition(py::module_& m) {
  m.def(
      "partition_uniformly",
      [](std::size_t layers, std::int32_t stages) {
        return bounds_of(layers, stages, partition::Uniform{});
      },
      py::arg("layers"), py::arg("stages"),
      "The first layer of each stage, then the number of layers: as many layers as possible "
      "alike.");
  m.def(
      "partition_by_costs",
      [](const std::vector<double>& costs, std::int32_t stages) {
        return bounds_of(costs.size(), stages, partition::ByCost{costs});
      },
      py::arg("costs"), py::arg("stages"),
      "The same, so that the largest stage, by a cost per layer, is as small as possible.");
  m.def(
      "partition_by_bounds",
      [](std::size_t layers, std::int32_t stages, const std::vector<std::int64_t>& bounds) {
        return bounds_of(layers, stages, partition::ByBounds{bounds});
      },
      py::arg("layers"), py::arg("stages"), py::arg("bounds"), "`bounds`, checked.");
}

}  // namespace penstock::bindings
