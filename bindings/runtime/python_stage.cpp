#include "bindings/runtime/python_stage.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/utils/pybind.h>

#include <string_view>
#include <typeinfo>
#include <utility>

#include "bindings/runtime/python_error.h"
#include "penstock/runtime/nn/draw.h"
#include "penstock/runtime/parameters/gradient_arrivals.h"
#include "penstock/runtime/stage/any_node.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;

py::tuple to_python(const nn::Values& values) {
  py::tuple tuple(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    tuple[i] = values[i].defined() ? py::cast(values[i]) : py::none();
  }
  return tuple;
}

nn::Values from_python(const py::tuple& tuple) {
  nn::Values values(tuple.size());
  for (std::size_t i = 0; i < tuple.size(); ++i) {
    if (!tuple[i].is_none()) values[i] = tuple[i].cast<at::Tensor>();
  }
  return values;
}

using torch::autograd::Node;

// Torch's own nodes do not ask the engine for anything, and neither do weights without hooks.
bool is_plain(Node& node) {
  const auto& when_final = node.tensor_post_acc_grad_hooks();
  const std::string_view type = typeid(node).name();
  const bool known = type.starts_with("N5torch8autograd9generated") ||
                     type == typeid(torch::autograd::AccumulateGrad).name();
  return known && node.pre_hooks().empty() && node.post_hooks().empty() &&
         node.tensor_pre_hooks().empty() && node.retains_grad_hooks().empty() &&
         (!when_final || parameters::only_notes_arrival(*when_final));
}

}  // namespace

PythonLayer::PythonLayer(const py::object& stage)
    : stage_(stage), forward_(stage.attr("forward")) {}

nn::Values PythonLayer::forward_values(const nn::Values& inputs) {
  return with_gil([&] {
    const py::tuple outputs = forward_(nn::draw_place().microbatch, to_python(inputs));
    nn::Values values = from_python(outputs);
    look_at_graph(values);
    return values;
  });
}

void PythonLayer::look_at_graph(const nn::Values& outputs) {
  if (has_run_ && needs_engine_ && may_nest_) return;
  if (outputs.empty() || !at::GradMode::is_enabled()) return;
  may_nest_ = may_nest_ || stage::runs_python(outputs);
  if (std::exchange(has_run_, true) && needs_engine_) return;
  needs_engine_ = stage_.attr("needs_engine").cast<bool>() ||
                  stage::any_node(outputs, [](Node& node) { return !is_plain(node); });
}

bool PythonLayer::splits_backward() const {
  return with_gil([&] { return stage_.attr("splits_backward").cast<bool>(); });
}

void PythonHooks::unshard() {
  with_gil([&] { hooks_.attr("unshard")(); });
}

void PythonHooks::reshard() {
  with_gil([&] { hooks_.attr("reshard")(); });
}

void PythonHooks::after_backward_input(std::int64_t microbatch) {
  with_gil([&] { hooks_.attr("after_backward_input")(microbatch); });
}

void PythonHooks::after_backward(std::int64_t microbatch) {
  with_gil([&] { hooks_.attr("after_backward")(microbatch); });
}

void PythonHooks::finish() {
  with_gil([&] { hooks_.attr("finish")(); });
}

nn::Loss python_loss(const py::function& loss, std::shared_ptr<PythonLayer> last) {
  return nn::Loss([loss, last = std::move(last)](const nn::Values&, const nn::Values&) {
    return with_gil([&] {
      const auto value = loss().cast<at::Tensor>();
      last->look_at_graph(value);
      return value;
    });
  });
}

}  // namespace penstock::bindings
