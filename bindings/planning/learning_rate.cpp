#include "penstock/plan/config/learning_rate.h"

#include <pybind11/pybind11.h>

#include <string_view>

#include "bindings/planning/init.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;

config::WarmupType warmup_named(std::string_view name) {
  return name == "linear" ? config::WarmupType::Linear : config::WarmupType::Log;
}

}  // namespace

void init_learning_rate(py::module_& m) {
  m.attr("WARMUP_STEPS_MIN") = config::kWarmupStepsMin;
  m.def(
      "warmup_share",
      [](std::string_view warmup_type, std::int64_t step, std::int64_t steps) {
        return config::warmup_share(warmup_named(warmup_type), step, steps);
      },
      py::arg("warmup_type"), py::arg("step"), py::arg("steps"),
      "From 0 at step 0 to 1 at step `steps`; warmup_type: \"log\" or \"linear\".");
  m.def(
      "warmup_cosine_share",
      [](std::int64_t step, std::int64_t total_num_steps, double warmup_min_ratio,
         std::int64_t warmup_num_steps, double cos_min_ratio, std::string_view warmup_type) {
        const config::SchedulerConfig scheduler{.type = config::SchedulerType::WarmupCosine,
                                                .warmup_num_steps = warmup_num_steps,
                                                .total_num_steps = total_num_steps,
                                                .warmup_min_ratio = warmup_min_ratio,
                                                .cos_min_ratio = cos_min_ratio,
                                                .warmup_type = warmup_named(warmup_type)};
        return config::learning_rate_share(scheduler, step, total_num_steps);
      },
      py::arg("step"), py::arg("total_num_steps"), py::arg("warmup_min_ratio"),
      py::arg("warmup_num_steps"), py::arg("cos_min_ratio"), py::arg("warmup_type"),
      "The learning rate of a step, from 0, as a share of the optimizer's own.");
}

}  // namespace penstock::bindings
