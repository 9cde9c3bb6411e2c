#include "penstock/simulate/simulate.h"

#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/planning/init.h"
#include "bindings/planning/per_stage.h"
#include "bindings/planning/pictures.h"
#include "bindings/planning/simulated.h"
#include "penstock/core/text.h"
#include "penstock/plan/render/chrome_trace.h"
#include "penstock/plan/render/simulated_timeline.h"
#include "penstock/plan/render/timeline_page.h"
#include "penstock/plan/render/timeline_svg.h"
#include "penstock/plan/render/timeline_trace.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using simulate::Costs;
using simulate::Event;
using simulate::Simulation;
using verify::VerifiedSchedule;

// One rank's numbers; Python lists ranks, not numbers by rank.
struct RankNumbers {
  double busy = 0.0;
  double exchange = 0.0;
  double span = 0.0;
  double bubble = 0.0;
  std::int32_t peak_activations = 0;
  double peak_memory = 0.0;
  std::int32_t unshard_peak = 0;
};

Simulated run(const schedule::Schedule& schedule, const Costs& costs,
              const verify::Options& options) {
  VerifiedSchedule verified = VerifiedSchedule::from(schedule, options);
  Simulation simulation = simulate::simulate(verified, costs);
  return {std::move(verified), std::move(simulation)};
}

std::vector<RankNumbers> ranks_of(const Simulated& simulated) {
  const Simulation& s = simulated.simulation;
  std::vector<RankNumbers> ranks;
  for (std::size_t r = 0; r < s.busy.size(); ++r) {
    ranks.push_back({.busy = s.busy[r],
                     .exchange = s.exchange[r],
                     .span = s.span[r],
                     .bubble = s.bubble(Rank(r)),
                     .peak_activations = s.peak_activations[r],
                     .peak_memory = s.peak_memory[r],
                     .unshard_peak = s.unshard_peak[r]});
  }
  return ranks;
}

render::Timeline timeline_of(const Simulated& simulated) {
  return render::simulated_timeline(simulated.verified, simulated.simulation);
}

std::string svg_of(const Simulated& simulated) {
  return render::timeline_svg(timeline_of(simulated));
}

std::string page_of(const Simulated& simulated) {
  const render::Timeline timeline = timeline_of(simulated);
  return render::timeline_page(timeline.title, {&timeline, 1});
}

std::string trace_of(const Simulated& simulated) {
  return render::chrome_trace(render::trace_of(timeline_of(simulated)));
}

std::string spell_simulated(const Simulated& simulated) {
  return str("<Simulation of ", schedule::title(simulated.verified.schedule()), ": makespan ",
             simulated.simulation.makespan, ">");
}

Costs costs_of(const PythonPerStage& forward, const PythonPerStage& input,
               const PythonPerStage& weight, const std::optional<PythonPerStage>& backward,
               const PythonPerStage& forward_exchange, const PythonPerStage& input_exchange,
               const std::optional<PythonPerStage>& backward_exchange, double overlap,
               double latency, const PythonPerStage& message, std::optional<double> bandwidth,
               const PythonPerStage& gather, const PythonPerStage& reduce, double optimizer,
               const PythonPerStage& activation, double keep) {
  Costs costs{.forward = per_stage(forward),
              .input = per_stage(input),
              .weight = per_stage(weight),
              .forward_exchange = per_stage(forward_exchange),
              .input_exchange = per_stage(input_exchange),
              .overlap = overlap,
              .latency = latency,
              .message = per_stage(message),
              .bandwidth = bandwidth,
              .gather = per_stage(gather),
              .reduce = per_stage(reduce),
              .optimizer = optimizer,
              .activation = per_stage(activation),
              .keep = keep};
  if (backward) costs.backward = per_stage(*backward);
  if (backward_exchange) costs.backward_exchange = per_stage(*backward_exchange);
  return costs;
}

}  // namespace

std::optional<std::string> picture_of(const schedule::Schedule& schedule) {
  try {
    return svg_of(run(schedule, {}, {}));
  } catch (const verify::Refusal&) {
    return {};
  }
}

void init_simulate(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<Costs>(m, "Costs", "What actions, messages and activations cost.")
      .def(py::init(&costs_of), py::kw_only(), py::arg("forward"), py::arg("input"),
           py::arg("weight"), py::arg("backward"), py::arg("forward_exchange"),
           py::arg("input_exchange"), py::arg("backward_exchange"), py::arg("overlap"),
           py::arg("latency"), py::arg("message"), py::arg("bandwidth"), py::arg("gather"),
           py::arg("reduce"), py::arg("optimizer"), py::arg("activation"), py::arg("keep"));
  py::class_<RankNumbers>(m, "RankSimulation", "What a simulation says of one rank.")
      .def_readonly("busy", &RankNumbers::busy, "The sum of its compute actions' times.")
      .def_readonly("exchange", &RankNumbers::exchange,
                    "What of that is exchanges inside of layers, which nothing hides.")
      .def_readonly("span", &RankNumbers::span, "From its first start to its last end.")
      .def_readonly("bubble", &RankNumbers::bubble, "Share of the makespan without compute.")
      .def_readonly("peak_activations", &RankNumbers::peak_activations,
                    "Most live activations at once.")
      .def_readonly("peak_memory", &RankNumbers::peak_memory, "The most that they take.")
      .def_readonly("unshard_peak", &RankNumbers::unshard_peak, "Most stages unsharded at once.");
  py::class_<Simulated>(m, "Simulation",
                        "When each action of a schedule would run; a notebook shows the timeline.")
      .def_property_readonly(
          "makespan", [](const Simulated& s) { return s.simulation.makespan; },
          "From 0 to the end of the last action, and of the optimizer.")
      .def_property_readonly("ranks", ranks_of, "What each rank does, in numbers.")
      .def_property_readonly(
          "span_bubble", [](const Simulated& s) { return s.simulation.span_bubble(); },
          "Share of the longest span that the busiest rank does not compute.")
      .def("to_svg", svg_of, without_gil, "The picture of the timeline.")
      .def("to_html", page_of, without_gil, "One page with zoom, and what was waited for.")
      .def("to_trace", trace_of, without_gil, "For chrome://tracing and ui.perfetto.dev.")
      .def("_repr_svg_", svg_of, without_gil)
      .def("__repr__", spell_simulated);
  m.def("simulate", run, py::arg("schedule"), py::arg("costs"), py::arg("options"), without_gil);
}

}  // namespace penstock::bindings
