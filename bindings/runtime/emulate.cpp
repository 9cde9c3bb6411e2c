#include "penstock/emulate/emulate.h"

#include <pybind11/stl.h>
#include <pybind11/typing.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "bindings/runtime/init.h"
#include "bindings/runtime/python_error.h"
#include "bindings/runtime/python_stage.h"
#include "penstock/config/read.h"
#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/runtime/run/from_config.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using emulate::RankReport;
using emulate::Report;
using Tensors = std::vector<at::Tensor>;
using LossOfLayers = py::typing::Callable<at::Tensor(Tensors, Tensors)>;

constexpr std::chrono::milliseconds kBetweenSignals(100);

// An object that threads without the GIL may copy and drop.
std::shared_ptr<const py::object> held(py::object object) {
  return {new py::object(std::move(object)), [](const py::object* last) {
            const py::gil_scoped_acquire gil;
            delete last;
          }};
}

// The module under `path` in `root`, "attn.norm", and its tensor's own name.
std::pair<torch::nn::Module*, std::string> place_in(torch::nn::Module& root,
                                                    const std::string& path) {
  torch::nn::Module* module = &root;
  std::size_t begin = 0;
  for (std::size_t dot = path.find('.'); dot != std::string::npos; dot = path.find('.', begin)) {
    const std::string name = path.substr(begin, dot - begin);
    const auto children = module->named_children();
    const auto* const known = children.find(name);
    module = known != nullptr
                 ? known->get()
                 : module->register_module(name, std::make_shared<torch::nn::Module>()).get();
    begin = dot + 1;
  }
  return {module, path.substr(begin)};
}

// A module of Python's, whose parameters and buffers are the layer's: it has `parameters` and
// `buffers`, by name, besides what a PythonLayer has.
class ModuleLayer : public PythonLayer {
 public:
  explicit ModuleLayer(const py::object& made) : PythonLayer(made) {
    using Named = std::vector<std::pair<std::string, at::Tensor>>;
    for (const auto& [path, tensor] : made.attr("parameters").cast<Named>()) {
      const auto [module, name] = place_in(*this, path);
      module->register_parameter(name, tensor, tensor.requires_grad());
    }
    for (const auto& [path, tensor] : made.attr("buffers").cast<Named>()) {
      const auto [module, name] = place_in(*this, path);
      module->register_buffer(name, tensor);
    }
  }
};

void delete_with_gil(ModuleLayer* layer) {
  const py::gil_scoped_acquire gil;
  delete layer;
}

nn::LayerSpec layer_of(const py::handle& given) {
  nn::LayerSpec spec;
  spec.meta = {given.attr("name").cast<std::string>(), given.attr("type").cast<std::string>(),
               nn::kNotCounted};
  spec.make = [make = held(given.attr("make"))]() -> std::shared_ptr<nn::Layer> {
    return with_gil(
        [&] { return std::shared_ptr<nn::Layer>(new ModuleLayer((*make)()), &delete_with_gil); });
  };
  const auto key = given.attr("key").cast<std::optional<std::string>>();
  if (key) spec.ties = {{*key, given.attr("tied").cast<std::vector<std::string>>()}};
  return spec;
}

nn::Loss loss_of(const LossOfLayers& given) {
  return nn::Loss([loss = held(given)](const nn::Values& outputs, const nn::Values& targets) {
    return with_gil([&] { return (*loss)(Tensors(outputs), Tensors(targets)).cast<at::Tensor>(); });
  });
}

// What layers and a batch that are given leave to say.
config::Config read(const std::string& text, const std::string& name, std::int64_t samples) {
  config::ReadConfig read = config::parse_config(text, name);
  for (const auto& [key, origin] : read.origins) {
    if (key.starts_with("model.") || key.starts_with("data.")) {
      throw ConfigError(
          str(to_string(origin), ": ", key, " is not for a step whose layers are given"));
    }
  }
  config::BatchConfig& batch = read.config.batch;
  if (!batch.train_batch_size && !batch.train_micro_batch_size_per_gpu) {
    batch.train_batch_size =
        samples * config::asked_shape(read.config.mesh).size(mesh::Role::OtherSamples);
  }
  return std::move(read.config);
}

emulate::Step step_of(const config::Config& config, std::int64_t samples) {
  const mesh::Shape mesh = config::asked_shape(config);
  const config::Batch batch = config::resolve_batch(config.batch, mesh);
  const std::int64_t said = batch.micro_batch_size * batch.microbatches;
  if (said != samples) {
    throw ConfigError(str("the inputs have ", samples,
                          " samples, and a replica takes as the configuration says ", said, ": ",
                          batch.microbatches, " microbatches of ", batch.micro_batch_size));
  }
  return {.options = run::options_of(config, mesh, batch)};
}

// Emulates on another thread, while this one hears of Ctrl-C.  REQUIRES: no GIL.
Report until_interrupted(emulate::Step step, const devices::DeviceModel& device) {
  std::stop_source stop;
  step.stop = stop.get_token();
  auto report = std::async(std::launch::async, [&] { return emulate::emulate(step, device); });
  while (report.wait_for(kBetweenSignals) != std::future_status::ready) {
    const py::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() == 0) continue;
    stop.request_stop();
    const py::error_already_set interrupt;
    const py::gil_scoped_release released;
    report.wait();
    throw interrupt;
  }
  return report.get();
}

Report emulate_layers(const std::string& text, const std::string& name,
                      const py::typing::List<py::object>& layers, const LossOfLayers& loss,
                      const std::pair<Tensors, Tensors>& batch, const devices::DeviceModel& device,
                      std::optional<double> value_read, const std::string& folder) {
  const std::int64_t samples =
      batch.first.empty() || batch.first[0].dim() == 0 ? 0 : batch.first[0].size(0);
  emulate::Step step = step_of(read(text, name, samples), samples);
  for (const py::handle& each : layers) step.layers.push_back(layer_of(each));
  step.loss = loss_of(loss);
  step.inputs = batch.first;
  step.targets = batch.second;
  step.value_read = value_read;
  step.folder = folder;
  // Python asks torch.cuda, which a torch for CPUs has not.
  torch::utils::set_requires_device_init(at::kCUDA, false);
  try {
    const py::gil_scoped_release released;
    return until_interrupted(std::move(step), device);
  } catch (...) {
    rethrow_for_python();
  }
}

template <emulate::Work work>
double seconds(const RankReport& rank) {
  return rank.step.kernel_s[static_cast<std::size_t>(work)];
}

template <auto member>
auto of_ledger(const RankReport& rank) {
  return rank.step.*member;
}

void add_rank(py::module_& m) {
  using emulate::Ledger;
  using emulate::Work;
  py::class_<RankReport>(m, "EmulatedRank",
                         "What a rank of an emulated step did, in seconds and bytes.")
      .def_readonly("step_s", &RankReport::step_s, "The step, by this rank's clock.")
      .def_property_readonly("products_s", &seconds<Work::Products>)
      .def_property_readonly("attention_s", &seconds<Work::Attention>)
      .def_property_readonly("other_s", &seconds<Work::Other>, "All other kernels.")
      .def_property_readonly("copies_s", &of_ledger<&Ledger::copy_s>)
      .def_property_readonly("message_wait_s", &of_ledger<&Ledger::message_wait_s>)
      .def_property_readonly("host_wait_s", &of_ledger<&Ledger::host_wait_s>)
      .def_property_readonly("rest_s", &RankReport::rest_s, "The device did none of these.")
      .def_property_readonly("kernels", [](const RankReport& r) { return r.step.all_kernels(); })
      .def_property_readonly("scalars", &of_ledger<&Ledger::scalars>,
                             "Numbers that the host read one by one.")
      .def_property_readonly("copies_out", &of_ledger<&Ledger::copies_out>, "To the host.")
      .def_property_readonly("bytes_out", &of_ledger<&Ledger::bytes_out>)
      .def_property_readonly("copies_in", &of_ledger<&Ledger::copies_in>)
      .def_property_readonly("bytes_in", &of_ledger<&Ledger::bytes_in>)
      .def_property_readonly("messages", &of_ledger<&Ledger::messages>,
                             "To devices of other ranks, that it sent.")
      .def_property_readonly("message_bytes", &of_ledger<&Ledger::message_bytes>)
      .def_property_readonly("peak_bytes", [](const RankReport& r) { return r.memory.peak; })
      .def_property_readonly(
          "live_at_peak", [](const RankReport& r) { return r.memory.owned_at_peak; },
          "Bytes by the operator that wrote them first.");
}

}  // namespace

void init_emulate(py::module_& m) {
  add_rank(m);
  py::class_<Report>(m, "EmulatedStep", "What an emulated step came to.")
      .def_readonly("step_s", &Report::step_s, "Seconds of the slowest rank.")
      .def_readonly("samples", &Report::samples, "Of the step, all replicas.")
      .def_property_readonly(
          "samples_per_s",
          [](const Report& r) { return static_cast<double>(r.samples) / r.step_s; })
      .def_readonly("share_of_peak", &Report::share_of_peak,
                    "Operations of products and attention, of what all devices could do.")
      .def_readonly("ranks", &Report::ranks, "By rank.");
  m.def(
      "emulate",
      [](const std::string& text, const std::string& name,
         const py::typing::List<py::object>& layers, const LossOfLayers& loss,
         const std::pair<Tensors, Tensors>& batch, const std::string& device,
         std::optional<int> devices_per_host, std::optional<double> value_read,
         const std::string& folder) {
        devices::DeviceModel model = devices::device_model(device);
        if (devices_per_host) model.devices_per_host = *devices_per_host;
        return emulate_layers(text, name, layers, loss, batch, model, value_read, folder);
      },
      py::arg("text"), py::arg("name"), py::arg("layers"), py::arg("loss"), py::arg("batch"),
      py::arg("device"), py::arg("devices_per_host"), py::arg("value_read"), py::arg("folder"),
      "A step on virtual devices.  text: the configuration, in JSON, which errors call `name`.  "
      "Each of the layers has name, type, make(), and key and tied, its ties.");
}

}  // namespace penstock::bindings
