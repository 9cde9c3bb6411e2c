#include "penstock/plan/search/search.h"

#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/planning/init.h"
#include "bindings/planning/simulated.h"
#include "penstock/core/text.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using search::Placement;
using search::Result;

Result find_schedule(std::int32_t ranks, std::int32_t microbatches,
                     const std::vector<std::int32_t>& stages_per_rank,
                     const std::vector<Placement>& placements, const simulate::Costs& costs,
                     std::optional<double> memory_max, double seconds,
                     std::optional<std::int64_t> rounds, std::uint64_t seed) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  search::Budget budget{.seed = seed,
                        .stop = [end] { return Clock::now() >= end; },
                        .progress =
                            [](const search::Progress&) {
                              const py::gil_scoped_acquire gil;
                              if (PyErr_CheckSignals() != 0) throw py::error_already_set();
                            }};
  if (rounds) budget.rounds = *rounds;
  return search::search({.ranks = ranks,
                         .microbatches = microbatches,
                         .stages_per_rank = stages_per_rank,
                         .placements = placements,
                         .costs = costs,
                         .memory_max = memory_max},
                        budget);
}

std::string spell_found(const Result& result) {
  return str("<Found ", schedule::title(result.schedule.schedule()), ": makespan ",
             result.simulation.makespan, ", at least ", result.bound.makespan, ">");
}

}  // namespace

void init_search(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::enum_<Placement>(m, "Placement")
      .value("Loop", Placement::Loop)
      .value("V", Placement::V)
      .value("Any", Placement::Any);
  py::class_<Result>(m, "Found", "The fastest schedule that a search has found.")
      .def_property_readonly(
          "schedule", [](const Result& r) { return r.schedule.schedule(); },
          "Its compute order, which verifies.")
      .def_property_readonly(
          "simulation", [](const Result& r) { return Simulated{r.schedule, r.simulation}; },
          "When each of its actions runs, with the costs of the search.")
      .def_property_readonly(
          "makespan", [](const Result& r) { return r.simulation.makespan; }, "Of the simulation.")
      .def_property_readonly(
          "lower_bound", [](const Result& r) { return r.bound.makespan; },
          "No schedule that the search may choose is faster.")
      .def_property_readonly("gap", &Result::gap,
                             "How much of the bound the makespan is above it; 0: it is optimal.")
      .def_readonly("stages_per_rank", &Result::stages_per_rank, "That were chosen.")
      .def_property_readonly(
          "placement", [](const Result& r) { return std::string(to_string(r.placement)); },
          "The placement that was chosen: \"loop\", \"v\" or \"any\".")
      .def_readonly("rounds", &Result::rounds, "How many there were: see `search`.")
      .def("__repr__", spell_found);
  m.def("search", find_schedule, py::kw_only(), py::arg("ranks"), py::arg("microbatches"),
        py::arg("stages_per_rank"), py::arg("placements"), py::arg("costs"), py::arg("memory_max"),
        py::arg("seconds"), py::arg("rounds"), py::arg("seed"), without_gil);
}

}  // namespace penstock::bindings
