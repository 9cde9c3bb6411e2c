#include "bindings/runtime/update.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/runtime/init.h"
#include "bindings/runtime/replicated.h"
#include "penstock/runtime/offload/kept_memory.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using update::GradientScale;
using update::Update;

std::optional<std::map<std::string, std::variant<double, std::int64_t>>> state_of(
    const GradientScale& scale) {
  const auto state = scale.state();
  if (!state) return std::nullopt;
  return {{{"value", state->value}, {"lives", state->lives}, {"clean_steps", state->clean_steps}}};
}

void init_gradient_scale(py::module_& m) {
  py::class_<GradientScale, std::shared_ptr<GradientScale>>(
      m, "GradientScale", "What losses are multiplied by, and gradients divided by.")
      .def(py::init([](bool enabled, double loss_scale, std::int64_t initial_scale_power,
                       std::int64_t loss_scale_window, std::int64_t hysteresis,
                       bool consecutive_hysteresis, double min_loss_scale) {
             return std::make_shared<GradientScale>(
                 config::Fp16Config{.enabled = enabled,
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
      .def("begin_again", &GradientScale::begin_again, "As it was when it was made.")
      .def(
          "go_on_from",
          [](GradientScale& scale, double value, std::int64_t lives, std::int64_t clean_steps) {
            scale.go_on_from({.value = value, .lives = lives, .clean_steps = clean_steps});
          },
          py::kw_only(), py::arg("value"), py::arg("lives"), py::arg("clean_steps"),
          "Such a state, with no more lives than it began with; a fixed scale stays.");
}

void init_request(py::module_& m) {
  py::class_<UpdateRequest>(m, "UpdateRequest", "What is updated, and how.")
      .def(py::init([](std::vector<std::size_t> parameters, std::shared_ptr<GradientScale> scale,
                       double clipping, bool skips_overflows,
                       std::optional<std::string> states_folder, std::int64_t elements_at_once) {
             return UpdateRequest{.parameters = std::move(parameters),
                                  .scale = std::move(scale),
                                  .clipping = clipping,
                                  .skips_overflows = skips_overflows,
                                  .states_folder = std::move(states_folder),
                                  .elements_at_once = elements_at_once};
           }),
           py::kw_only(), py::arg("parameters"), py::arg("scale"), py::arg("clipping"),
           py::arg("skips_overflows"), py::arg("states_folder"), py::arg("elements_at_once"),
           "parameters: numbers of trainable ones.  clipping: largest 2-norm of the gradient; 0: "
           "none.  skips_overflows: a step whose gradient is not finite; else it is an error.  "
           "states_folder: of a file with masters and optimizer states; None: they are in memory.  "
           "elements_at_once: are updated together, if anything is in a file.");
}

}  // namespace

std::unique_ptr<Update> make_update(const parameters::Parts& parts, const UpdateRequest& request) {
  // What moves to a file is to leave the memory.
  if (request.states_folder) offload::give_freed_memory_back();
  const std::set<std::size_t> parameters(request.parameters.begin(), request.parameters.end());
  std::vector<parameters::Part> updated;
  for (const parameters::Part& part : parts.all()) {
    if (parameters.contains(part.parameter)) updated.push_back(part);
  }
  return std::make_unique<Update>(
      std::move(updated), request.scale,
      update::UpdateOptions{.clipping = request.clipping,
                            .overflow = request.skips_overflows ? update::Overflow::SkipsStep
                                                                : update::Overflow::Fails,
                            .states = in_folder(request.states_folder),
                            .elements_at_once = request.elements_at_once});
}

void init_update(py::module_& m) {
  init_gradient_scale(m);
  init_request(m);
  m.def(
      "gradient_norm",
      [](const std::vector<double>& squares) { return update::gradient_norm(squares); },
      py::arg("squares"), "From the parameters' squared norms, in model order.");
  py::class_<Update>(m, "Update", "Makes new parameters of a step's summed gradients.")
      .def_property_readonly(
          "masters", [](const Update& u) { return u.masters().tensors(); },
          "By part, what an optimizer updates: copies in float of those of short types.")
      .def_property_readonly(
          "has_files", [](Update& u) { return u.memory() != nullptr; },
          "Whether anything that is updated, or its states, is in a file.")
      .def(
          "keep",
          [](Update& u, std::size_t part, const at::Tensor& state) {
            return u.memory() == nullptr ? state : u.memory()->keep(part, state);
          },
          py::arg("part"), py::arg("state"),
          "A tensor with these values where the states of a part are.")
      .def(
          "let_go",
          [](Update& u, std::size_t part) {
            if (u.memory() != nullptr) u.memory()->let_go({.first = part, .end = part + 1});
          },
          py::arg("part"), "What is in a file of it will not be used soon.")
      .def(
          "apply",
          [](Update& u, double norm, std::int64_t number, const std::string& where,
             const py::typing::Callable<py::none(py::int_, py::int_)>& step) {
            return u.apply(norm, number, where,
                           [&](update::PartRun run) { step(run.first, run.end); });
          },
          py::arg("norm"), py::arg("number"), py::arg("where"), py::arg("step"),
          "Scales and clips the parts' gradients, and has step(first, end) update the masters of "
          "parts, which alone have gradients then.  Returns False if the norm is not finite and "
          "the step is skipped; an Error where it is not.")
      .def("take_changes", &Update::take_changes,
           "Elements of parameters that somebody has set become their masters.")
      .def(
          "put_back",
          [](Update& u) {
            u.masters().put_back_all();
            if (u.memory() != nullptr) u.memory()->let_go(u.masters().all());
          },
          "Parameters become their masters, which somebody has set, rounded.")
      .def_property("skipped_steps", &Update::skipped_steps, &Update::set_skipped_steps)
      .def_property_readonly("file_bytes", &Update::file_bytes);
}

}  // namespace penstock::bindings
