#include <ATen/core/grad_mode.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/runtime/init.h"
#include "bindings/runtime/without_gil.h"
#include "penstock/runtime/parameters/rank_parameters.h"
#include "penstock/runtime/saving/checkpoint_writer.h"
#include "penstock/runtime/saving/saved_piece.h"
#include "penstock/runtime/weights/safetensors.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using checkpoint::SavedCheckpoint;
using parameters::OwnedElements;
using train::StatePiece;

void init_pieces(py::module_& m) {
  py::class_<OwnedElements>(m, "OwnedElements", "What a rank has of a parameter between steps.")
      .def_property_readonly("name", [](const OwnedElements& k) { return k.parameter.name; })
      .def_property_readonly(
          "shape", [](const OwnedElements& k) { return k.parameter.tensor.sizes().vec(); })
      .def_readonly("values", &OwnedElements::values, "All of it, or this rank's slice, flat.")
      .def_readonly("first", &OwnedElements::first, "Of its elements.")
      .def_readonly("is_slice", &OwnedElements::is_slice, "Other ranks have the others.")
      .def_readonly("part", &OwnedElements::part,
                    "Its number in parts(); None: this rank does not update it.");
  py::class_<StatePiece>(m, "StatePiece", "Some elements of a tensor, to be saved or set.")
      .def(
          py::init([](std::string name, std::string state, std::vector<std::int64_t> shape,
                      at::Tensor values, std::int64_t first, bool is_slice, bool is_saved_here) {
            return StatePiece{.name = std::move(name),
                              .state = std::move(state),
                              .shape = std::move(shape),
                              .first = first,
                              .values = values.detach(),
                              .is_slice = is_slice,
                              .is_saved_here = is_saved_here};
          }),
          py::arg("name"), py::arg("state"), py::arg("shape"), py::arg("values"), py::kw_only(),
          py::arg("first") = 0, py::arg("is_slice") = false, py::arg("is_saved_here") = true,
          "shape: of the whole tensor, which has the values from its element `first` on.  state: "
          "\"weight\", or the optimizer's word.  is_slice: other replicas have its other elements.")
      .def_readonly("name", &StatePiece::name)
      .def_readonly("state", &StatePiece::state)
      .def_readonly("shape", &StatePiece::shape)
      .def_readonly("first", &StatePiece::first)
      .def_readonly("values", &StatePiece::values)
      .def_readonly("is_saved_here", &StatePiece::is_saved_here);
}

std::string save_checkpoint(comm::Communicator& communicator, std::string directory,
                            std::string name, std::int64_t step, checkpoint::Texts facts,
                            checkpoint::Texts values, std::vector<StatePiece> pieces,
                            std::int32_t replicas, std::int32_t replica) {
  train::share_out(pieces, replicas, replica);
  return without_gil(communicator, [&] {
    execute::Progress progress;
    saving::CheckpointWriter writer(communicator, progress, std::move(directory), false);
    writer.begin({.name = std::move(name),
                  .step = step,
                  .facts = std::move(facts),
                  .values = std::move(values),
                  .pieces = [&] { return pieces; }});
    return writer.finish().folder;
  });
}

void init_writer(py::module_& m) {
  m.def("save_checkpoint", &save_checkpoint, py::arg("communicator"), py::arg("directory"),
        py::kw_only(), py::arg("name"), py::arg("step"), py::arg("facts"), py::arg("values"),
        py::arg("pieces"), py::arg("replicas") = 1, py::arg("replica") = 0,
        "Collective: writes a checkpoint, each rank its own shard, and returns its folder.  facts: "
        "those of rank 0 are saved; values: of all ranks.  Of `replicas` that have the same "
        "pieces, in the same order, one saves each.");
}

using PythonTensors =
    std::vector<std::tuple<std::string, std::string, at::ScalarType, std::vector<std::int64_t>>>;

PythonTensors tensors_of(const SavedCheckpoint& saved) {
  PythonTensors tensors;
  for (const checkpoint::Tensor& each : saved.manifest().tensors) {
    tensors.emplace_back(each.name, each.state, weights::type_of(each.type), each.shape);
  }
  return tensors;
}

void init_saved(py::module_& m) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<SavedCheckpoint>(m, "SavedCheckpoint",
                              "A checkpoint on disk: any elements of any tensor, each verified.")
      .def(py::init<std::string>(), py::arg("folder"), without_gil)
      .def_property_readonly("folder", &SavedCheckpoint::folder)
      .def_property_readonly("step", [](const SavedCheckpoint& s) { return s.manifest().step; })
      .def_property_readonly("facts", [](const SavedCheckpoint& s) { return s.manifest().facts; })
      .def_property_readonly("values", [](const SavedCheckpoint& s) { return s.manifest().values; })
      .def("tensors", &tensors_of, "Of each: name, state, dtype, shape.")
      .def(
          "check",
          [](const SavedCheckpoint& s, const StatePiece& piece) {
            saving::check_fits(s.manifest(), piece);
          },
          py::arg("piece"), "Raises CheckpointError unless the tensor is there, in that shape.")
      .def(
          "verify",
          [](SavedCheckpoint& s, const StatePiece& piece) { saving::verify_piece(s, piece); },
          py::arg("piece"), without_gil, "Reads what read() would, and sets nothing.")
      .def(
          "read",
          [](SavedCheckpoint& s, const StatePiece& piece) {
            const at::NoGradGuard no_grad;
            saving::read_piece(s, piece);
          },
          py::arg("piece"), without_gil,
          "Sets the piece's values.  Raises CheckpointError for what is not as it was written.");
  m.def(
      "write_safetensors",
      [](const std::string& path, const weights::NamedTensors& tensors) {
        weights::write_safetensors(path, tensors, {{"format", "pt"}});
      },
      py::arg("path"), py::arg("tensors"), without_gil,
      "Writes names and tensors, so that the file is old or new, never half.");
}

}  // namespace

void init_checkpoint(py::module_& m) {
  init_pieces(m);
  init_writer(m);
  init_saved(m);
}

}  // namespace penstock::bindings
