#include <pybind11/stl.h>

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/planning/init.h"
#include "penstock/plan/schedule/deepspeed/conversion.h"
#include "penstock/plan/schedule/deepspeed/stepped.h"
#include "penstock/plan/verify/stepped.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using namespace schedule::deepspeed;  // NOLINT: all of the dialect, and nothing else.

using PythonStep = std::vector<std::pair<std::string, std::optional<std::int32_t>>>;

PythonStep to_python(const Step& step) {
  PythonStep result;
  for (const Instruction& instruction : step) {
    result.emplace_back(to_string(instruction.kind), instruction.buffer);
  }
  return result;
}

// The same where every instruction has a number.
std::vector<std::pair<std::string, std::int32_t>> numbered(const Step& step) {
  std::vector<std::pair<std::string, std::int32_t>> result;
  for (const Instruction& instruction : step) {
    result.emplace_back(to_string(instruction.kind), *instruction.buffer);
  }
  return result;
}

Step from_python(const PythonStep& step) {
  Step result;
  for (const auto& [name, buffer] : step) result.push_back(make_instruction(name, buffer));
  return result;
}

void init_position(py::module_& m) {
  py::enum_<TrainVersion>(m, "TrainVersion", "Which TrainSchedule of DeepSpeed's.")
      .value("Original", TrainVersion::Original)
      .value("Later", TrainVersion::Later);
  py::class_<Position>(m, "Position", "A stage of a pipeline, and what it does at which step.")
      .def(py::init([](std::int32_t micro_batches, std::int32_t stages, std::int32_t stage_id) {
             const Position at{.microbatches = micro_batches, .stages = stages, .stage = stage_id};
             check_position(at);
             return at;
           }),
           py::arg("micro_batches"), py::arg("stages"), py::arg("stage_id"))
      .def(
          "step_to_micro_batch",
          [](const Position& at, std::int32_t step) {
            const Tick tick = step_to_micro_batch(at, step);
            return std::pair(tick.microbatch, tick.is_forward);
          },
          py::arg("step"))
      .def("even_step_forward_id", even_step_forward_id, py::arg("step"))
      .def("odd_step_forward_id", odd_step_forward_id, py::arg("step"))
      .def("even_step_backward_id", even_step_backward_id, py::arg("step"))
      .def("odd_step_backward_id", odd_step_backward_id, py::arg("step"))
      .def("train_step_count", train_step_count)
      .def("train_buffers", train_buffers, py::arg("version"))
      .def(
          "train_step",
          [](const Position& at, std::int32_t microbatch, bool is_forward, std::int32_t previous,
             TrainVersion version) {
            constexpr std::int32_t kOnePerMicrobatch = std::numeric_limits<std::int32_t>::max();
            return numbered(train_step_at(at, {.microbatch = microbatch, .is_forward = is_forward},
                                          previous, version, kOnePerMicrobatch));
          },
          py::arg("microbatch"), py::arg("is_forward"), py::arg("previous"), py::arg("version"),
          "What a stage does, with the number of the microbatch in place of the buffer.")
      .def(
          "inference_step",
          [](const Position& at, std::int32_t t) { return to_python(inference_step(at, t)); },
          py::arg("step"))
      .def(
          "data_parallel_step",
          [](const Position& at, std::int32_t t) { return to_python(data_parallel_step(at, t)); },
          py::arg("step"));
  m.attr("INFERENCE_BUFFERS") = kInferenceBuffers;
  m.attr("DATA_PARALLEL_BUFFERS") = kDataParallelBuffers;
}

using PythonStage = std::pair<std::int32_t, std::vector<PythonStep>>;

// Each stage's buffers and steps.
std::vector<PythonStage> stages_of(const SteppedSchedule& schedule) {
  std::vector<PythonStage> stages;
  for (const StageSteps& stage : schedule.stages) {
    std::vector<PythonStep> steps;
    for (const Step& step : stage.steps) steps.push_back(to_python(step));
    stages.emplace_back(stage.buffers, std::move(steps));
  }
  return stages;
}

SteppedSchedule stepped_of(const schedule::Schedule& program, TrainVersion version) {
  return to_stepped(verify::VerifiedSchedule::from(program).schedule(), version);
}

verify::Verdict verify_stages(const SteppedSchedule& schedule,
                              const std::optional<std::vector<std::int32_t>>& tied_stages) {
  verify::SteppedOptions options;
  if (tied_stages) {
    options.tied_stages.emplace();
    for (const std::int32_t stage : *tied_stages) options.tied_stages->emplace_back(stage);
  }
  return verify_stepped(schedule, options);
}

}  // namespace

void init_deepspeed(py::module_& m) {
  init_position(m);
  py::class_<SteppedSchedule>(m, "SteppedSchedule",
                              "A schedule in DeepSpeed's form: for each stage, steps of "
                              "instructions.")
      .def(py::init([](std::string name, std::int32_t microbatches) {
             return SteppedSchedule{
                 .name = std::move(name), .microbatches = microbatches, .stages = {}};
           }),
           py::arg("name"), py::arg("microbatches"))
      .def(
          "add_stage",
          [](SteppedSchedule& schedule, std::int32_t buffers,
             const std::vector<PythonStep>& steps) {
            StageSteps stage{.buffers = buffers, .steps = {}};
            for (const PythonStep& step : steps) stage.steps.push_back(from_python(step));
            schedule.stages.push_back(std::move(stage));
          },
          py::arg("buffers"), py::arg("steps"))
      .def_property_readonly("stages", stages_of, "Each stage's number of buffers, and its steps.")
      .def("to_text", [](const SteppedSchedule& schedule) { return to_text(schedule); })
      .def("to_schedule", to_schedule, py::call_guard<py::gil_scoped_release>())
      .def("verify", verify_stages, py::arg("tied_stages"),
           py::call_guard<py::gil_scoped_release>());
  m.def("to_stepped", stepped_of, py::arg("program"), py::arg("version"),
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace penstock::bindings
