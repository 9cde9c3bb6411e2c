#include "penstock/verify/verify.h"

#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "bindings/planning/init.h"
#include "bindings/planning/per_stage.h"
#include "penstock/core/text.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using verify::Channels;
using verify::Diagnostic;
using verify::Options;
using verify::Verdict;

std::optional<std::int32_t> number_of(const std::optional<Rank>& rank) {
  if (!rank) return {};
  return rank->value;
}

std::vector<std::int32_t> ranks_of_stages(const Verdict& verdict) {
  std::vector<std::int32_t> ranks;
  if (verdict.facts.homes.ways() > 1) return ranks;
  for (const Rank rank : verdict.facts.homes.of_stages()) ranks.push_back(rank.value);
  return ranks;
}

std::string spell_verdict(const Verdict& verdict) {
  if (verdict.diagnostics.empty()) return "no objections";
  std::vector<std::string> texts;
  for (const Diagnostic& diagnostic : verdict.diagnostics) texts.push_back(to_string(diagnostic));
  return join(texts, "\n");
}

}  // namespace

void init_verify(py::module_& m) {
  py::enum_<Channels>(m, "Channels", "How a message finds its receiver.")
      .value("Tagged", Channels::Tagged)
      .value("DirFifo", Channels::DirFifo)
      .value("PairFifo", Channels::PairFifo)
      .value("RankFifo", Channels::RankFifo);
  py::class_<Options>(m, "Options", "Under which rules a schedule is verified.")
      .def(py::init([](Channels channels, std::optional<std::int32_t> activations_max,
                       std::optional<double> memory_max, const PythonPerStage& activation,
                       double keep) {
             return Options{.channels = channels,
                            .activations_max = activations_max,
                            .memory_max = memory_max,
                            .activation = per_stage(activation),
                            .keep = keep};
           }),
           py::arg("channels"), py::arg("activations_max"), py::arg("memory_max"),
           py::arg("activation"), py::arg("keep"));
  py::class_<Diagnostic>(m, "Diagnostic", "An objection to a schedule; see docs/errors.md.")
      .def_property_readonly(
          "code", [](const Diagnostic& d) { return to_string(d.code); }, "\"S012\".")
      .def_property_readonly(
          "kind", [](const Diagnostic& d) { return std::string(kind(d.code)); },
          "The code in a word: \"deadlock\".")
      .def_property_readonly(
          "rank", [](const Diagnostic& d) { return number_of(d.rank); },
          "Position on the pipe axis; None where it is of the whole schedule.")
      .def_readonly("step", &Diagnostic::step, "Place in that rank's program, from 0.")
      .def_readonly("message", &Diagnostic::message)
      .def_readonly("notes", &Diagnostic::notes, "The program around it, and what repairs it.")
      .def("__str__", [](const Diagnostic& d) { return to_string(d); })
      .def("__repr__", [](const Diagnostic& d) {
        return str("<Diagnostic ", to_string(d.code), ": ", d.message, ">");
      });
  py::class_<Verdict>(m, "Verdict", "What verify found; true when there are no objections.")
      .def_readonly("diagnostics", &Verdict::diagnostics, "All objections, in program order.")
      .def_property_readonly(
          "peak_activations", [](const Verdict& v) { return v.facts.peak_activations; },
          "By rank: most live activations at once; empty when there are objections.")
      .def_property_readonly(
          "rank_of_stage", ranks_of_stages,
          "By stage; empty when there are objections, or stages have several ranks.")
      .def("__bool__", [](const Verdict& v) { return v.diagnostics.empty(); })
      .def("__str__", spell_verdict)
      .def("__repr__", [](const Verdict& v) {
        return str("<Verdict: ", v.diagnostics.size(), " objections>");
      });
  m.def("verify", verify::verify, py::arg("schedule"), py::arg("options"),
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace penstock::bindings
