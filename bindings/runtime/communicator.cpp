#include <c10/util/Logging.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <vector>

#include "bindings/runtime/init.h"
#include "bindings/runtime/without_gil.h"
#include "penstock/runtime/comm/call_words.h"
#include "penstock/runtime/comm/calls.h"
#include "penstock/runtime/comm/own_address.h"
#include "penstock/runtime/comm/world.h"
#include "penstock/runtime/rank/presence.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using Store = c10::intrusive_ptr<c10d::Store>;

// The threads that its end waits for may wait for the GIL.
struct DeleteWithoutGil {
  void operator()(comm::Communicator* communicator) const {
    const py::gil_scoped_release without_gil;
    delete communicator;
  }
};
using Held = std::unique_ptr<comm::Communicator, DeleteWithoutGil>;

Held communicator(Store store, std::int32_t rank, std::int32_t world_size,
                  const std::string& store_host, double deadline_s, c10::Device device) {
  c10::initLogging();
  const std::chrono::milliseconds deadline(static_cast<std::int64_t>(deadline_s * 1e3));
  const std::string listen =
      comm::choose_own_address(store, Rank(rank), world_size, store_host, deadline);
  return Held(comm::make_world(std::move(store), Rank(rank), world_size, listen,
                               comm::Transport::Auto, deadline, device)
                  .release());
}

std::int32_t make_group(comm::Communicator& c, const std::vector<std::int32_t>& ranks) {
  std::vector<Rank> members;
  for (const std::int32_t rank : ranks) members.emplace_back(rank);
  return without_gil(c, [&] { return c.make_group(members).index; });
}

void sum(comm::Communicator& c, const at::Tensor& tensor, std::int32_t group) {
  without_gil(c, [&] { c.all_reduce(tensor, {.index = group})->wait(); });
}

void broadcast(comm::Communicator& c, const at::Tensor& tensor, std::int32_t group,
               std::int32_t root) {
  without_gil(c, [&] { c.broadcast(tensor, {.index = group}, root)->wait(); });
}

}  // namespace

void init_communicator(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  m.def(
      "begin_call",
      [](const std::string& name, bool of_all) {
        comm::Call::begin(name, of_all ? comm::Callers::All : comm::Callers::Some);
      },
      py::arg("name"), py::arg("of_all") = true,
      "This thread begins a call that all ranks of communicators make together, or some of them.");
  m.def("end_call", &comm::Call::end, "And ends it.");
  m.def(
      "spoken_call",
      [] {
        comm::Call::speaks();
        return std::string(comm::Call::name());
      },
      "The call that this thread is in, which speaks to other ranks; \"\": it is in none.");
  m.def(
      "words_of_calls",
      [](const std::vector<std::string>& names, std::int32_t own) {
        return comm::call_words(names, Rank(own));
      },
      py::arg("names"), py::arg("own"),
      "Where ranks are, by rank, if they are not in one call; else \"\".");
  m.def("begin_presence", &rank::begin_presence, without_gil,
        "From now on this process's launcher sees where it stands.  Returns: whether one listens.");
  m.def(
      "report_failure",
      [](const std::string& message, int code) {
        rank::report_failure(message, static_cast<ExitCode>(code));
      },
      py::arg("message"), py::arg("code"), without_gil,
      "Tells that launcher why this process is about to end, and with which code.");
  py::class_<comm::Communicator, Held>(m, "Communicator",
                                       "What the ranks of a group say to each other.")
      .def(py::init(&communicator), py::arg("store"), py::arg("rank"), py::arg("world_size"),
           py::arg("store_host"), py::arg("deadline_s"), py::arg("device"), without_gil,
           "Collective over all ranks, which have reached `store`; store_host: where that is, or "
           "\"\"; "
           "device: what this one computes on.")
      .def_property_readonly("rank", [](const comm::Communicator& c) { return c.rank().value; })
      .def_property_readonly("world_size", &comm::Communicator::world_size)
      .def("fail", &comm::Communicator::fail_with, py::arg("message"), without_gil,
           "Ends what all ranks wait for, now and later: this rank has failed with that message.")
      .def("call_words", &comm::Communicator::call_words, without_gil,
           "Which calls for all ranks the ranks are in, if not in one; else \"\".  Asks them.")
      .def("exchange", &comm::Communicator::exchange, py::arg("name"), py::arg("text"), without_gil,
           "Collective: the text of every rank, by rank.")
      .def("make_group", make_group, py::arg("ranks"),
           "Collective over `ranks`, which are the same, in the same order, on each: a group's "
           "number, for the calls below.  Every rank makes as many groups as any other.")
      .def("sum", sum, py::arg("tensor"), py::arg("group"),
           "Collective over a group: sums a tensor in place, to the same bits everywhere.")
      .def("broadcast", broadcast, py::arg("tensor"), py::arg("group"), py::arg("root"),
           "Collective over a group: the tensor of its `root`-th rank to all of it, in place.");
}

}  // namespace penstock::bindings
