#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "bindings/runtime/init.h"
#include "penstock/train/gradient_scale.h"
#include "penstock/train/master_weights.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using train::GradientScale;
using train::MasterWeights;

std::optional<std::map<std::string, std::variant<double, std::int64_t>>> state_of(
    const GradientScale& scale) {
  const auto state = scale.state();
  if (!state) return std::nullopt;
  return {{{"value", state->value}, {"lives", state->lives}, {"clean_steps", state->clean_steps}}};
}

void init_gradient_scale(py::module_& m) {
  py::class_<GradientScale>(m, "GradientScale",
                            "What losses are multiplied by, and gradients divided by.")
      .def(py::init([](bool enabled, double loss_scale, std::int64_t initial_scale_power,
                       std::int64_t loss_scale_window, std::int64_t hysteresis,
                       bool consecutive_hysteresis, double min_loss_scale) {
             return GradientScale({.enabled = enabled,
                                   .loss_scale = loss_scale,
                                   .initial_scale_power = initial_scale_power,
                                   .loss_scale_window = loss_scale_window,
                                   .hysteresis = hysteresis,
                                   .consecutive_hysteresis = consecutive_hysteresis,
                                   .min_loss_scale = min_loss_scale});
           }),
           py::kw_only(), py::arg("enabled"), py::arg("loss_scale"), py::arg("initial_scale_power"),
           py::arg("loss_scale_window"), py::arg("hysteresis"), py::arg("consecutive_hysteresis"),
           py::arg("min_loss_scale"),
           "As the section fp16 of a configuration says; 1, for good, if it is not enabled.")
      .def_property_readonly("value", &GradientScale::value)
      .def("update", &GradientScale::update, py::arg("overflowed"),
           "After a step, which was skipped if it overflowed; an Error for that at the smallest.")
      .def("state", &state_of,
           "value, lives and clean_steps, which steps change; None of a fixed scale.")
      .def(
          "go_on_from",
          [](GradientScale& scale, double value, std::int64_t lives, std::int64_t clean_steps) {
            scale.go_on_from({.value = value, .lives = lives, .clean_steps = clean_steps});
          },
          py::kw_only(), py::arg("value"), py::arg("lives"), py::arg("clean_steps"),
          "Such a state, with no more lives than it began with; a fixed scale stays.");
}

}  // namespace

void init_precision(py::module_& m) {
  init_gradient_scale(m);
  py::class_<MasterWeights>(m, "MasterWeights",
                            "What is updated for tensors of short types: copies in float.")
      .def(py::init<std::vector<at::Tensor>>(), py::arg("parameters"),
           "Those of other types are their own.")
      .def_property_readonly("tensors", &MasterWeights::tensors, "By parameter.")
      .def("take_changes", &MasterWeights::take_changes,
           "Elements of parameters that somebody has set since put_back() become their masters.")
      .def(
          "take_gradients",
          [](MasterWeights& masters, double scale, double factor) {
            masters.take_gradients(masters.all(), {.scale = scale, .factor = factor});
          },
          py::arg("scale"), py::arg("factor"),
          "The parameters' gradients become their masters', divided by `scale`, times `factor`.")
      .def(
          "put_back", [](MasterWeights& masters) { masters.put_back(masters.all()); },
          "Parameters become their masters, rounded; the gradients taken are given up.");
}

}  // namespace penstock::bindings
