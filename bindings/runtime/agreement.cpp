#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <stdexcept>
#include <vector>

#include "bindings/runtime/init.h"
#include "bindings/runtime/named_facts.h"
#include "bindings/runtime/without_gil.h"
#include "penstock/core/text.h"
#include "penstock/runtime/train/handshake.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using checkpoint::SavedCheckpoint;

train::Occasion occasion_of(const std::string& name) {
  const auto found = agreement::find_occasion(name);
  if (!found) throw std::invalid_argument(str(in_quotes(name), " is no occasion"));
  return *found;
}

void agree(comm::Communicator& communicator, const std::string& occasion, const NamedFacts& facts,
           const std::optional<std::vector<std::vector<std::int32_t>>>& groups) {
  const train::Occasion on = occasion_of(occasion);
  const auto stated = agreement::Facts::by_name(on, facts);
  std::vector<std::vector<Rank>> ranks;
  if (!groups) ranks.push_back(communicator.all_ranks());
  for (const auto& group : groups.value_or(std::vector<std::vector<std::int32_t>>())) {
    ranks.emplace_back(group.begin(), group.end());
  }
  without_gil(communicator, [&] { train::agree_on(on, stated, communicator, ranks); });
}

}  // namespace

void init_agreement(py::module_& m) {
  m.def("agree", &agree, py::arg("communicator"), py::arg("occasion"), py::arg("facts"),
        py::arg("groups") = py::none(),
        "Collective over all ranks: those of each group must have the same facts, names and "
        "values.  groups: None: one of all ranks.\n\n"
        "Raises CommError, on every rank, with the first fact that differs and both values, and "
        "ValueError for a name that docs/handshake.md does not have on that occasion.");
  m.def(
      "facts_of_process", [] { return named(train::facts_of_process()); },
      "What decides on results and is nobody's argument, by name: versions, torch's settings, the "
      "environment.");
  m.def(
      "facts_of_host_updates", [] { return named(train::facts_of_host_updates()); },
      "The bits of an update of fixed values on this host's CPU.");
  m.def(
      "facts_of_checkpoint",
      [](const SavedCheckpoint* saved) { return named(train::facts_of(saved)); },
      py::arg("saved").none(true), "Which one this rank has opened; None: there is none.");
}

}  // namespace penstock::bindings
