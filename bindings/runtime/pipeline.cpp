#include "penstock/runtime/train/pipeline.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/runtime/init.h"
#include "bindings/runtime/named_facts.h"
#include "bindings/runtime/python_error.h"
#include "bindings/runtime/python_stage.h"
#include "bindings/runtime/replicated.h"
#include "bindings/runtime/without_gil.h"
#include "penstock/core/text.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using Tensors = std::vector<at::Tensor>;
using train::Pipeline;
using PythonStages = py::typing::List<py::object>;
using PythonLoss = py::typing::Callable<at::Tensor()>;
using PythonReplaced = std::tuple<std::int32_t, std::string, std::optional<std::int32_t>,
                                  py::typing::Callable<void()>>;
using PythonInstead = py::typing::Callable<void(std::vector<PythonReplaced>)>;

// An action's own part, called by what stands in for it.
void run_from_python(const std::function<void()>& run) {
  try {
    const py::gil_scoped_release released;
    run();
  } catch (...) {
    rethrow_for_python();
  }
}

struct PythonPipeline {
  PythonPipeline(const schedule::Schedule& program, const PythonStages& stages,
                 const NamedFacts& facts, comm::Communicator& c, std::int32_t replicas,
                 const std::optional<PythonReplicated*>& replicated)
      : communicator(c) {
    std::vector<train::PipelineStage> given;
    std::vector<train::Tie> ties;
    for (const py::handle& handle : stages) {
      const auto stage = py::reinterpret_borrow<py::object>(handle);
      const py::object hooks = stage.attr("hooks");
      given.push_back({.stage = StageId(stage.attr("stage_index").cast<std::int32_t>()),
                       .layer = last = std::make_shared<PythonLayer>(stage),
                       .device = stage.attr("device").cast<c10::Device>(),
                       .may_nest = [layer = last] { return layer->may_nest(); }});
      if (!hooks.is_none()) given.back().hooks = std::make_shared<PythonHooks>(hooks);
      for (auto& [name, tensor] : stage.attr("tied").cast<std::map<std::string, at::Tensor>>()) {
        ties.push_back({.name = name, .stage = given.back().stage, .parameter = tensor});
      }
    }
    // Copies: where this throws, the last of a Python object goes out of scope out here.
    without_gil(communicator, [&] {
      pipeline.emplace(program, given, ties,
                       agreement::Facts::by_name(train::Occasion::Engine, facts), communicator,
                       replicas, replicated ? &*(*replicated)->parameters : nullptr);
    });
  }

  Tensors run(const std::vector<Tensors>& inputs, const std::optional<PythonLoss>& loss,
              const std::optional<std::vector<double>>& loss_factors, double gradient_divisor) {
    training = inputs_of(inputs, loss, loss_factors);
    training.gradient_divisor = gradient_divisor;
    Tensors losses = without_gil(communicator, [&] { return pipeline->run(training).losses; });
    training = {};
    return losses;
  }

  Tensors evaluate(const std::vector<Tensors>& inputs, const std::optional<PythonLoss>& loss,
                   std::optional<std::int32_t> microbatches) {
    execute::StepInputs step = inputs_of(inputs, loss, {});
    if (loss && microbatches) step.targets.resize(static_cast<std::size_t>(*microbatches));
    return without_gil(communicator, [&] { return pipeline->evaluate(step, microbatches).losses; });
  }

  // Calls `instead` with what it stands in for: stage, operation, microbatch, and what runs it.
  void replace(const std::string& operation, const PythonInstead& instead) {
    const execute::Instead call = [this, instead](const std::vector<execute::Replaced>& replaced) {
      with_gil([&] {
        std::vector<PythonReplaced> actions;
        // A thread of the function's may still run one when a step has failed.
        const py::object self = py::cast(this, py::return_value_policy::reference);
        for (const auto& [action, run] : replaced) {
          std::optional<std::int32_t> microbatch;
          if (action.microbatch) microbatch = action.microbatch->value;
          actions.emplace_back(action.stage.value, std::string(to_string(action.op)), microbatch,
                               py::cpp_function([self, run = run] { run_from_python(run); }));
        }
        instead(actions);
      });
    };
    if (operation == "OVERLAP_F_B") return pipeline->executor().replace_pairs(call);
    for (std::size_t op = 0; op < schedule::kOps; ++op) {
      if (to_string(static_cast<schedule::Op>(op)) != operation) continue;
      return pipeline->executor().replace(static_cast<schedule::Op>(op), call);
    }
    throw ConfigError(str("operation is ", json_quote(operation), ", which is none"));
  }

  execute::StepInputs inputs_of(const std::vector<Tensors>& inputs,
                                const std::optional<PythonLoss>& loss,
                                const std::optional<std::vector<double>>& loss_factors) const {
    execute::StepInputs step;
    step.inputs.assign(inputs.begin(), inputs.end());
    if (!loss) return step;
    step.loss = python_loss(*loss, last);
    step.targets.resize(static_cast<std::size_t>(pipeline->schedule().schedule().microbatches));
    if (loss_factors) step.loss_factors = *loss_factors;
    return step;
  }

  comm::Communicator& communicator;
  std::shared_ptr<PythonLayer> last;  // Last of the stages, which are in rising order.
  std::optional<Pipeline> pipeline;
  execute::StepInputs training;  // Inputs of the step that runs, or has failed.
};

}  // namespace

void init_pipeline(py::module_& m) {
  py::class_<PythonPipeline>(m, "Pipeline", "A program over stages that are Python objects.")
      .def(py::init<const schedule::Schedule&, const PythonStages&, const NamedFacts&,
                    comm::Communicator&, std::int32_t, const std::optional<PythonReplicated*>&>(),
           py::arg("program"), py::arg("stages"), py::arg("facts"), py::arg("communicator"),
           py::arg("replicas") = 1, py::arg("replicated") = py::none(), py::keep_alive<1, 5>(),
           py::keep_alive<1, 7>(),
           "Collective: verifies the program, compares it and `facts`, names and values, with "
           "those of the other ranks, and connects.  Each stage has stage_index, "
           "device, forward(microbatch, tensors), splits_backward, hooks and tied, parameters by "
           "name.  The communicator's ranks are the program's x `replicas`, these fastest.\n\n"
           "replicated: has a set for each stage, in rising order, of the parameters that are its "
           "alone, and one of all others; gradients are summed there, and hooks are not called.")
      .def("run", &PythonPipeline::run, py::arg("inputs"), py::arg("loss"), py::arg("loss_factors"),
           py::arg("gradient_divisor") = 1.0,
           "Runs the program once; returns the losses on the rank of the last stage.\n\n"
           "inputs: by microbatch, on the rank of the first stage, tensors of the form of what it "
           "gets; loss: called after each forward of the last stage, on its rank; "
           "gradient_divisor: what `replicated` divides its sums by.")
      .def("evaluate", &PythonPipeline::evaluate, py::arg("inputs"), py::arg("loss"),
           py::arg("microbatches") = py::none(),
           "The same, forward only and without graphs; as many microbatches as the program has, if "
           "no other number is given.")
      .def("replace", &PythonPipeline::replace, py::arg("operation"), py::arg("instead"),
           "From now on `instead` is called at actions of this operation, with a list: a stage, an "
           "operation, a microbatch and what runs it, for the action, or both of OVERLAP_F_B.")
      .def_property_readonly(
          "peak_activations",
          [](const PythonPipeline& p) { return p.pipeline->activations().peak; },
          "Most (stage, microbatch) activations that were alive at once on this rank.");
}

}  // namespace penstock::bindings
