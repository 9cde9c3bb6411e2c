#include "penstock/plan/schedule/passes/passes.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/planning/init.h"
#include "penstock/core/error.h"
#include "penstock/core/read_file.h"
#include "penstock/core/text.h"
#include "penstock/plan/schedule/cells.h"
#include "penstock/plan/schedule/generators/torch.h"
#include "penstock/plan/schedule/timetable.h"
#include "penstock/verify/verify.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using schedule::FileFormat;
using schedule::Program;
using schedule::Schedule;
using schedule::Timetable;

// A cell is an action, an overlapped pair, or None: an idle slot.
using Table = std::vector<std::vector<std::optional<std::string>>>;
using PythonAction = std::tuple<std::int32_t, std::string, std::optional<std::int32_t>>;

Table table_of(const Timetable& table) {
  Table rows;
  for (std::size_t rank = 0; rank < table.action_slots.size(); ++rank) {
    const Program& program = table.schedule.programs[rank];
    auto& row = rows.emplace_back(static_cast<std::size_t>(table.lengths[rank]));
    for (std::size_t i = 0; i < program.size();) {
      const auto unit = unit_at(program, i);
      append_cell(row[static_cast<std::size_t>(table.action_slots[rank][i])].emplace(), unit);
      i += unit.size();
    }
  }
  return rows;
}

std::vector<PythonAction> parse_unit(const std::string& text) {
  Program program;
  schedule::parse_cell(text, program);
  std::vector<PythonAction> unit;
  for (const schedule::Action& action : program) {
    std::optional<std::int32_t> microbatch;
    if (action.microbatch) microbatch = action.microbatch->value;
    unit.emplace_back(action.stage.value, to_string(action.op), microbatch);
  }
  return unit;
}

FileFormat format_of(const std::string& name) {
  if (name == "compute_only") return FileFormat::ComputeOnly;
  if (name == "compute_comms") return FileFormat::ComputeComms;
  throw ConfigError(
      str("format is ", json_quote(name), ", must be \"compute_only\" or \"compute_comms\""));
}

Table load_table(const std::string& path, const std::string& format) {
  return table_of(schedule::parse_timetable(
      read_file("schedule file", path, schedule::kFileBytesMax), path, format_of(format)));
}

Table torch_table(const std::string& name, std::int32_t ranks, std::int32_t stages_per_rank,
                  std::int32_t microbatches) {
  return table_of(schedule::torch_timetable(
      name, {.ranks = ranks, .stages_per_rank = stages_per_rank, .microbatches = microbatches}));
}

// The passes below need what verifies.
Schedule verified(const Schedule& schedule) {
  return verify::VerifiedSchedule::from(schedule).schedule();
}

// `cells`: an order, "" in its idle slots.
Schedule add_send_recv(const std::vector<std::vector<std::string>>& cells,
                       const std::string& name) {
  const Timetable table = schedule::parse_table(cells, name);
  return schedule::add_send_recv_as_torch(Timetable{.schedule = verified(table.schedule),
                                                    .action_slots = table.action_slots,
                                                    .lengths = table.lengths});
}

// The least slots that a schedule needs, with or without messages.
Table slots_of(const Schedule& schedule) {
  const auto waits = is_lowered(schedule) ? schedule::Waits::OfReceives : schedule::Waits::OfAll;
  return table_of(schedule::align(schedule::pack(verified(schedule)), waits));
}

}  // namespace

void init_passes(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  m.def("parse_unit", parse_unit, py::arg("text"),
        "The actions of a cell, as stage, operation and microbatch.");
  m.def("load_table", load_table, py::arg("path"), py::arg("format"), without_gil,
        "The cells of a CSV file, with its idle slots; format: as torch calls it.");
  m.def("torch_table", torch_table, py::arg("name"), py::arg("ranks"), py::arg("stages_per_rank"),
        py::arg("microbatches"), without_gil, "The pipeline_order that torch shows.");
  m.def("slots", slots_of, py::arg("schedule"), without_gil,
        "The table of its steps, where each action takes one.");
  m.def("add_unshard", schedule::add_unshard, py::arg("schedule"), py::arg("window"), without_gil);
  m.def(
      "add_reduce_gradients",
      [](Schedule schedule) { return schedule::add_reduce_gradients(std::move(schedule)); },
      py::arg("schedule"), without_gil);
  m.def(
      "fuse_backwards",
      [](schedule::Schedule schedule) { return schedule::fuse_backwards(std::move(schedule)); },
      py::arg("schedule"), without_gil);
  m.def("add_send_recv", add_send_recv, py::arg("cells"), py::arg("name"), without_gil,
        "An order, \"\" where it is idle, with its messages where torch has them.");
  m.def(
      "defer_receives",
      [](const Schedule& program) { return schedule::place_receives(verified(program), 0); },
      py::arg("program"), without_gil,
      "Each RECV as near to its use as the order of messages between two ranks allows.");
}

}  // namespace penstock::bindings
