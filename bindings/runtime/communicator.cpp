#include <c10/util/Logging.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>

#include "bindings/runtime/init.h"
#include "penstock/comm/world.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using Store = c10::intrusive_ptr<c10d::Store>;

std::unique_ptr<comm::Communicator> communicator(Store store, std::int32_t rank,
                                                 std::int32_t world_size, const std::string& listen,
                                                 double deadline_s) {
  c10::initLogging();
  return comm::make_world(std::move(store), Rank(rank), world_size, listen, comm::Transport::Auto,
                          std::chrono::milliseconds(static_cast<std::int64_t>(deadline_s * 1e3)));
}

}  // namespace

void init_communicator(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<comm::Communicator>(m, "Communicator", "What the ranks of a group say to each other.")
      .def(py::init(&communicator), py::arg("store"), py::arg("rank"), py::arg("world_size"),
           py::arg("listen"), py::arg("deadline_s"), without_gil,
           "Collective over all ranks, which have reached `store`.")
      .def_property_readonly("rank", [](const comm::Communicator& c) { return c.rank().value; })
      .def_property_readonly("world_size", &comm::Communicator::world_size)
      .def("fail", py::overload_cast<const std::string&>(&comm::Communicator::fail), py::arg("why"),
           without_gil, "Ends what all ranks wait for, now and later, with these words.")
      .def("exchange", &comm::Communicator::exchange, py::arg("name"), py::arg("text"), without_gil,
           "Collective: the text of every rank, by rank.");
}

}  // namespace penstock::bindings
