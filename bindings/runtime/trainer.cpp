#include "penstock/train/trainer.h"

#include <ATen/Parallel.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/runtime/init.h"
#include "bindings/runtime/without_gil.h"
#include "penstock/config/read.h"
#include "penstock/core/error.h"
#include "penstock/run/saved_model.h"
#include "penstock/runtime/run/configured_trainer.h"
#include "penstock/runtime/run/run_data.h"
#include "penstock/saving/checkpoints.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using train::StepReport;

bool says_data(const config::ReadConfig& read) {
  return std::ranges::any_of(read.origins,
                             [](const auto& each) { return each.first.starts_with("data."); });
}

// A run's Trainer, without the run around it.
class PythonTrainer {
 public:
  PythonTrainer(const std::string& text, const std::string& name, comm::Communicator& communicator,
                c10::Device device)
      : communicator_(communicator), read_(config::parse_config(text, name)) {
    at::set_num_threads(1);  // docs/numerics.md.
    without_gil(communicator, [&] { build(device); });
  }

  StepReport step(const std::optional<at::Tensor>& tokens,
                  const std::optional<at::Tensor>& targets) {
    return without_gil(communicator_, [&] {
      const run::Batch batch = batch_of(tokens, targets);
      return trainer().step(batch.input, batch.target);
    });
  }

  double evaluate(const at::Tensor& tokens, const at::Tensor& targets) {
    return without_gil(communicator_, [&] { return trainer().evaluate(tokens, targets); });
  }

  at::Tensor get(const std::string& name, const std::string& state) {
    return without_gil(communicator_, [&] { return trainer().get(name, state); });
  }

  void set(const std::string& name, const at::Tensor& values, const std::string& state) {
    without_gil(communicator_, [&] { trainer().set(name, values, state); });
  }

  void save(const std::string& directory) {
    without_gil(communicator_, [&] { checkpoints(directory).save(); });
  }

  std::int64_t load(const std::string& path) {
    return without_gil(communicator_, [&] { return checkpoints("").resume_from(path).step; });
  }

  void save_model(const std::string& folder) {
    without_gil(communicator_, [&] {
      run::SavedModel::check_folder(folder, trained_->model());
      run::SavedModel saved(folder, trained_->model(), trainer(), communicator_, progress_);
      saved.check_room();
      saved.write();
    });
  }

  std::map<std::string, std::int32_t> mesh() {
    const mesh::Shape& shape = trainer().layout().mesh.shape();
    std::map<std::string, std::int32_t> sizes;
    for (const mesh::Axis axis : mesh::kEveryAxis) {
      sizes[std::string(mesh::row_of(axis).name)] = shape[axis];
    }
    return sizes;
  }

  const mesh::Group& replicas() { return trainer().rank_model().groups().other_samples; }
  std::int64_t samples() const { return trained_->samples(); }
  std::int64_t steps_taken() { return trainer().steps_taken(); }

 private:
  void build(c10::Device device) {
    trained_.emplace(read_.config, communicator_, device, progress_);
    trained_->read_model();
    if (says_data(read_)) {
      data_ = run::open_data(read_.config, trained_->model(), trained_->batch_size(), [] {});
    }
    trained_->build(data_ ? data_->facts() : train::Facts(),
                    data_ ? data_->loss_scale() : train::LossScale::tokens());
  }

  // The given one, or the next of the configuration's data.
  run::Batch batch_of(const std::optional<at::Tensor>& tokens,
                      const std::optional<at::Tensor>& targets) {
    if (tokens.has_value() != targets.has_value()) {
      throw ConfigError("step() takes tokens and targets, or neither of them");
    }
    if (tokens) return {.input = *tokens, .target = *targets};
    if (!data_) {
      throw ConfigError("step() was given no tokens, and the configuration names no data",
                        {"call step(tokens, targets), or set data.path"});
    }
    return data_->training(trainer().steps_taken() + 1, trained_->first_sample(),
                           trained_->samples());
  }

  saving::Checkpoints checkpoints(const std::string& directory) {
    checkpoint::Texts facts;
    for (const agreement::StatedFact& each : trained_->facts()) facts[each.name] = each.value;
    facts["mesh"] = mesh::to_string(trainer().layout().mesh.shape());
    return {trainer(),
            communicator_,
            progress_,
            {.directory = directory, .facts = std::move(facts)},
            [](const std::string&) {}};
  }

  train::Trainer& trainer() { return trained_->trainer(); }

  comm::Communicator& communicator_;
  config::ReadConfig read_;
  execute::Progress progress_;
  std::optional<run::ConfiguredTrainer> trained_;
  std::unique_ptr<run::RunData> data_;  // Null: the configuration names none.
};

}  // namespace

void init_trainer(py::module_& m) {
  m.def(
      "check_run_configuration",
      [](const std::string& text, const std::string& name) { config::parse_config(text, name); },
      py::arg("text"), py::arg("name"),
      "Raises what a Trainer of the configuration raises before it speaks to other ranks.");
  py::class_<StepReport>(m, "StepReport", "What a step of a Trainer came to.")
      .def_readonly("step", &StepReport::step, "Counts from 1.")
      .def_readonly("loss", &StepReport::loss, "The mean over the whole step, all replicas.")
      .def_readonly("lr", &StepReport::lr)
      .def_readonly("grad_norm", &StepReport::grad_norm, "Before clipping, each parameter once.")
      .def_readonly("gradient_scale", &StepReport::gradient_scale, "None: there is none.")
      .def_readonly("skipped", &StepReport::skipped,
                    "Gradients overflowed, so that nothing was updated.");
  py::class_<PythonTrainer>(m, "Trainer", "A model of `penstock train`, on the ranks of its mesh.")
      .def(py::init<const std::string&, const std::string&, comm::Communicator&, c10::Device>(),
           py::arg("text"), py::arg("name"), py::arg("communicator"), py::arg("device"),
           py::keep_alive<1, 4>(),
           "Collective over all ranks; text: the configuration, in JSON, which errors call `name`.")
      .def("step", &PythonTrainer::step, py::arg("tokens") = py::none(),
           py::arg("targets") = py::none(), "Collective over all ranks.")
      .def("evaluate", &PythonTrainer::evaluate, py::arg("tokens"), py::arg("targets"),
           "Collective over all ranks.")
      .def("get", &PythonTrainer::get, py::arg("name"), py::arg("state"),
           "Collective over all ranks: the whole tensor.")
      .def("set", &PythonTrainer::set, py::arg("name"), py::arg("values"), py::arg("state"),
           "Collective over all ranks, with the same whole tensor.")
      .def("save_checkpoint", &PythonTrainer::save, py::arg("directory"),
           "Collective over all ranks.")
      .def("load_checkpoint", &PythonTrainer::load, py::arg("path"),
           "Collective over all ranks: the step after which it was saved.")
      .def("save_model", &PythonTrainer::save_model, py::arg("folder"),
           "Collective over all ranks.")
      .def_property_readonly("mesh", &PythonTrainer::mesh, "Sizes by axis.")
      .def_property_readonly("replica", [](PythonTrainer& t) { return t.replicas().here; })
      .def_property_readonly("replicas", [](PythonTrainer& t) { return t.replicas().size(); })
      .def_property_readonly("samples", &PythonTrainer::samples, "Of a step, of each replica.")
      .def_property_readonly("steps_taken", &PythonTrainer::steps_taken);
}

}  // namespace penstock::bindings
