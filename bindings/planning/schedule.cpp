#include "penstock/schedule/schedule.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/planning/init.h"
#include "bindings/planning/pictures.h"
#include "penstock/plan/lower/programs.h"
#include "penstock/plan/schedule/cells.h"
#include "penstock/plan/schedule/dialects.h"
#include "penstock/schedule/generators/generators.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using schedule::Purpose;
using schedule::Schedule;
using Cells = std::vector<std::vector<std::string>>;

const py::call_guard<py::gil_scoped_release> kWithoutGil;

Schedule generate(const std::string& name, std::int32_t ranks, std::int32_t microbatches,
                  std::optional<std::int32_t> stages_per_rank,
                  std::optional<std::int32_t> microbatch_group) {
  const schedule::Generator& generator = schedule::find_generator(name);
  return schedule::make_schedule(
      name, {.ranks = ranks,
             .stages_per_rank = stages_per_rank.value_or(generator.stages_per_rank),
             .microbatches = microbatches,
             .microbatch_group = microbatch_group});
}

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const schedule::Generator& generator : schedule::registry()) {
    result.emplace_back(generator.name);
  }
  return result;
}

Cells cells_of(const Schedule& schedule) {
  Cells cells;
  for (const schedule::Program& program : schedule.programs) {
    cells.push_back(schedule::to_cells(program));
  }
  return cells;
}

Schedule with_sizes(Schedule schedule, std::int32_t stages, std::int32_t microbatches) {
  schedule.purpose = Purpose::Train;
  schedule.stages = stages;
  schedule.microbatches = microbatches;
  return schedule;
}

}  // namespace

void init_schedule(py::module_& m) {
  py::class_<Schedule>(m, "Schedule",
                       "A program of actions per rank: what each one computes, sends and receives, "
                       "in order.\n\nstr() has a line per rank; a notebook shows the picture.")
      .def_readonly("name", &Schedule::name, "For people: \"1f1b\", or the file it came from.")
      .def_property_readonly(
          "purpose",
          [](const Schedule& s) { return s.purpose == Purpose::Train ? "train" : "forward"; },
          "\"train\", or \"forward\" for forward only.")
      .def_property_readonly("ranks", &Schedule::ranks, "How many ranks share a replica.")
      .def_readonly("stages", &Schedule::stages)
      .def_readonly("microbatches", &Schedule::microbatches, "Per step and replica.")
      .def_property_readonly("programs", cells_of,
                             "By rank, the actions as text: \"2F0\", \"1SEND_F3\".")
      .def_property_readonly("has_messages", schedule::is_lowered,
                             "Whether it says where to communicate, or only orders the compute.")
      .def("with_messages", lower::with_messages, py::arg("how") = "penstock", kWithoutGil,
           "The program that runs: reductions and messages added to a compute order.\n\n"
           "how: \"penstock\" as it trains, \"torch\" as torch.distributed.pipelining does.\n\n"
           "Raises ScheduleError when it does not verify, ConfigError when it has messages.")
      .def(
          "to_csv", [](const Schedule& s) { return schedule::to_csv(s); }, kWithoutGil,
          "A row per rank, as torch.distributed.pipelining reads it.")
      .def(
          "to_json", [](const Schedule& s) { return schedule::to_json(s); }, kWithoutGil,
          "The programs with name, sizes and placement; penstock.schedule.parse reads it.")
      .def("__str__", schedule::grid)
      .def("__repr__", [](const Schedule& s) { return "<Schedule " + schedule::title(s) + ">"; })
      .def("_repr_svg_", picture_of, kWithoutGil);
  m.def("generate", generate, py::arg("name"), py::arg("ranks"), py::arg("microbatches"),
        py::arg("stages_per_rank"), py::arg("microbatch_group"), kWithoutGil);
  m.def("names", names);
  m.def("table", schedule::registry_table);
  m.def(
      "parse",
      [](std::string text, const std::string& name) {
        return schedule::parse_schedule(std::move(text), name).schedule;
      },
      py::arg("text"), py::arg("name"), kWithoutGil);
  m.def("parse_cells", schedule::parse_cells, py::arg("cells"), py::arg("name"), kWithoutGil);
  m.def("with_sizes", with_sizes, py::arg("schedule"), py::arg("stages"), py::arg("microbatches"),
        kWithoutGil, "The same programs for training, said to be of these sizes.");
  m.def(
      "load", [](const std::string& path) { return schedule::load_schedule(path).schedule; },
      py::arg("path"), kWithoutGil);
}

}  // namespace penstock::bindings
