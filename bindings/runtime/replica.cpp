#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/runtime/init.h"
#include "bindings/runtime/replicated.h"
#include "bindings/runtime/update.h"
#include "bindings/runtime/without_gil.h"
#include "penstock/runtime/offload/kept_memory.h"
#include "penstock/runtime/parameters/pager.h"
#include "penstock/runtime/parameters/zero_init_parameters.h"
#include "penstock/runtime/train/model_places.h"
#include "penstock/runtime/train/module_replica.h"

namespace penstock::bindings {
namespace {

namespace py = pybind11;
using Numbers = std::vector<std::size_t>;
using parameters::ReplicaOptions;
using parameters::ZeroInitParameters;
using train::ModuleReplica;

std::vector<stage::NamedParameter> named(const Parameters& parameters) {
  std::vector<stage::NamedParameter> result;
  for (const auto& [name, tensor] : parameters) result.push_back({.name = name, .tensor = tensor});
  return result;
}

using PythonParts = std::vector<std::tuple<std::size_t, std::int64_t, at::Tensor>>;

PythonParts parts_of(const parameters::Parts& parts) {
  PythonParts result;
  for (const parameters::Part& part : parts.all()) {
    result.emplace_back(part.parameter, part.first, part.tensor);
  }
  return result;
}

std::map<std::string, std::int64_t> numbers_of(const parameters::PagerReport& report) {
  return {{"uses", report.uses},
          {"faults", report.faults},
          {"prefetches", report.prefetches},
          {"drops", report.drops},
          {"peak_bytes", report.peak_bytes}};
}

struct PythonSpread {
  PythonSpread(const Parameters& parameters, std::int64_t bucket_bytes, ReplicaGroup& g)
      : group(g) {
    without_gil(group.communicator,
                [&] { own.emplace(named(parameters), group.group, bucket_bytes); });
    module = &*own;
  }
  PythonSpread(ZeroInitParameters& of_replica, ReplicaGroup& g) : group(g), module(&of_replica) {}

  template <class Function>
  auto call(const Function& function) {
    return without_gil(group.communicator, [&] { return function(*module); });
  }

  ReplicaGroup& group;
  std::optional<ZeroInitParameters> own;
  ZeroInitParameters* module = nullptr;
};

std::vector<ZeroInitParameters*> modules_of(const std::vector<PythonSpread*>& spread) {
  std::vector<ZeroInitParameters*> modules;
  for (const PythonSpread* each : spread) modules.push_back(each->module);
  return modules;
}

using OptionalScale = std::optional<std::shared_ptr<update::GradientScale>>;

struct PythonReplica {
  PythonReplica(const Parameters& parameters, ReplicaGroup& g, const ReplicaOptions& options,
                const OptionalScale& scale, double divisor,
                const std::vector<PythonSpread*>& spread_before)
      : group(g) {
    without_gil(group.communicator, [&] {
      replica.emplace(named(parameters), options,
                      train::ModuleGradients{.scale = scale.value_or(nullptr), .divisor = divisor},
                      modules_of(spread_before), group.group, group.communicator);
    });
  }

  template <class Function>
  auto call(const Function& function) {
    return without_gil(group.communicator, [&] { return function(*replica); });
  }

  // Python runs between these two, and what it reads may wait for other ranks.
  void begin_forward(train::Forward forward) {
    if (group.group.size() > 1) watch.emplace(group.communicator);
    call([&](ModuleReplica& r) { r.begin_forward(forward); });
  }
  void end_forward() {
    watch.reset();
    call([](ModuleReplica& r) { r.end_forward(); });
  }
  // Frame a backward that somebody else runs.
  void begin_backward() {
    call([](ModuleReplica& r) { r.begin_backward(); });
    if (group.group.size() > 1) watch.emplace(group.communicator);
  }
  void end_backward() {
    watch.reset();
    call([](ModuleReplica& r) { r.end_backward(); });
  }
  void abandon() {
    watch.reset();
    call([](ModuleReplica& r) { r.abandon(); });
  }

  void backward(const at::Tensor& loss, double factor, bool ends, bool retain_graph) {
    call([&](ModuleReplica& r) {
      r.backward(loss, factor, ends ? execute::Accumulation::Ends : execute::Accumulation::GoesOn,
                 retain_graph ? train::Graph::Retained : train::Graph::Freed);
    });
  }

  ReplicaGroup& group;
  std::optional<ModuleReplica> replica;
  std::optional<SigintWatch> watch;
};

partition::SharingRules rules_of(const ReplicaOptions& options, std::int32_t ranks) {
  return parameters::sharing_rules(options.zero, options.pieces, ranks, options.device);
}

void init_options(py::module_& m) {
  py::class_<ReplicaOptions>(m, "ReplicaOptions",
                             "What replicas share, in how large steps, and where it is.")
      .def(py::init([](std::int32_t stage, std::int64_t bucket_bytes, std::int64_t live_bytes,
                       std::int64_t prefetch_bytes, std::int64_t persistent_elements,
                       std::int64_t persistent_elements_in_all,
                       const std::optional<std::string>& pieces_folder,
                       std::optional<at::ScalarType> sums) {
             if (pieces_folder) offload::give_freed_memory_back();
             return ReplicaOptions{
                 .zero = {.stage = static_cast<config::ZeroStage>(stage),
                          .bucket_bytes = bucket_bytes,
                          .limits = {.budget_bytes = live_bytes, .prefetch_bytes = prefetch_bytes},
                          .persistence = {.elements = persistent_elements,
                                          .elements_in_all = persistent_elements_in_all}},
                 .pieces = in_folder(pieces_folder),
                 .sums = sums};
           }),
           py::kw_only(), py::arg("stage"), py::arg("bucket_bytes"), py::arg("live_bytes"),
           py::arg("prefetch_bytes"), py::arg("persistent_elements"),
           py::arg("persistent_elements_in_all"), py::arg("pieces_folder"), py::arg("sums"),
           "stage: of ZeRO, 0 to 3.  Of stage 3: parameters that are whole at one time, how far "
           "ahead of a use they come, the largest that always stays whole, how many elements all "
           "of these may have, in the parameters' order, and the folder of a file with pieces, "
           "if they are to be in one.  sums: type in which gradients of short types are added; "
           "None: their own.")
      .def(
          "are_cut",
          [](const ReplicaOptions& o, std::int32_t ranks) { return rules_of(o, ranks).are_cut(); },
          py::arg("ranks"), "Whether so many replicas update slices, and not whole parameters.")
      .def(
          "come_and_go",
          [](const ReplicaOptions& o, std::int32_t ranks) {
            return rules_of(o, ranks).come_and_go();
          },
          py::arg("ranks"), "Whether parameters do, over so many replicas.");
}

// Layers here, each with the numbers of its parameters.
using PythonLayers = std::vector<std::pair<std::int64_t, Numbers>>;

std::unique_ptr<train::ModelPlaces> places_of(std::int64_t layers, const PythonLayers& here,
                                              comm::Communicator& communicator,
                                              std::int32_t group) {
  std::vector<train::CountedLayer> counted;
  for (const auto& [index, parameters] : here) {
    counted.push_back({.index = index, .parameters = parameters});
  }
  return without_gil(communicator, [&] {
    return std::make_unique<train::ModelPlaces>(layers, counted, [&](const at::Tensor& counts) {
      communicator.all_reduce(counts, comm::Group{group})->wait();
    });
  });
}

std::vector<double> placed(const train::ModelPlaces& places, const std::vector<double>& values,
                           const Numbers& chosen) {
  std::vector<double> mine(values.size(), 0.0);
  for (const std::size_t number : chosen) mine.at(number) = values[number];
  std::vector<double> all(static_cast<std::size_t>(places.size()), 0.0);
  places.place(mine, all);
  return all;
}

void init_places(py::module_& m) {
  py::class_<train::ModelPlaces>(m, "ModelPlaces",
                                 "The places of this rank's parameters among those of the model.")
      .def(py::init(&places_of), py::arg("layers"), py::arg("here"), py::arg("communicator"),
           py::arg("group"),
           "Collective over the group.  here: this rank's layers, of so many, each with the "
           "numbers of its parameters, in its order; without those that another rank counts.")
      .def("place", &placed, py::arg("values"), py::arg("chosen"),
           "Values by parameter of the model: the value here of a chosen one that counts here, "
           "and 0.0 for all others.  values: by parameter here.  chosen: numbers of those.");
}

void init_spread(py::module_& m) {
  py::class_<ReplicaGroup>(m, "ReplicaGroup", "Ranks of a communicator, as replicas.")
      .def(py::init([](comm::Communicator& communicator, const std::vector<std::int32_t>& ranks) {
             return std::make_unique<ReplicaGroup>(communicator,
                                                   std::vector<Rank>(ranks.begin(), ranks.end()));
           }),
           py::arg("communicator"), py::arg("ranks"), py::keep_alive<1, 2>(),
           py::call_guard<py::gil_scoped_release>(),
           "Collective over `ranks`, which are the same, in the same order, on each: connects "
           "them.")
      .def(
          "broadcast",
          [](ReplicaGroup& g, const at::Tensor& tensor, std::int32_t root) {
            without_gil(g.communicator,
                        [&] { g.communicator.broadcast(tensor, g.group.group(), root)->wait(); });
          },
          py::arg("tensor"), py::arg("root"),
          "Collective: the values of the `root`-th replica, in a contiguous tensor, in place.");
  py::class_<PythonSpread>(m, "ZeroInitParameters",
                           "Parameters, by number, of which each replica has a piece.")
      .def(py::init<const Parameters&, std::int64_t, ReplicaGroup&>(), py::arg("parameters"),
           py::arg("bucket_bytes"), py::arg("group"), py::keep_alive<1, 4>(),
           "Collective: spreads parameters, names and tensors, which are the same everywhere.")
      .def(
          "status",
          [](const PythonSpread& s, std::size_t parameter) {
            return static_cast<int>(s.module->status(parameter));
          },
          py::arg("parameter"), "As a number of DeepSpeed's ZeroParamStatus.")
      .def(
          "shard",
          [](const PythonSpread& s, std::size_t parameter) { return s.module->shard(parameter); },
          py::arg("parameter"), "This rank's part, flat; it may be empty.")
      .def(
          "hold",
          [](PythonSpread& s, const Numbers& parameters) {
            s.call([&](ZeroInitParameters& module) { module.hold(parameters); });
          },
          py::arg("parameters"), "Collective: brings them, to stay until as many release().")
      .def(
          "release",
          [](PythonSpread& s, const Numbers& parameters) {
            s.call([&](ZeroInitParameters& module) { module.release(parameters); });
          },
          py::arg("parameters"))
      .def(
          "take_changes",
          [](PythonSpread& s, std::size_t parameter, std::int32_t root) {
            s.call([&](ZeroInitParameters& module) { module.take_changes(parameter, root); });
          },
          py::arg("parameter"), py::arg("root"),
          "Collective: its values become those that the rank `root` sees.")
      .def(
          "changed",
          [](const PythonSpread& s, const Numbers& parameters) {
            return s.module->changed(parameters);
          },
          py::arg("parameters"), "Those that were changed while they were held, seen from here.")
      .def(
          "forget_changes",
          [](const PythonSpread& s, const Numbers& parameters) {
            s.module->forget_changes(parameters);
          },
          py::arg("parameters"), "They may be released all the same.");
}

template <class Function>
auto call(PythonReplicated& r, const Function& function) {
  return without_gil(r.group.communicator, [&] { return function(*r.parameters); });
}

void init_replicated(py::module_& m) {
  using parameters::RankParameters;
  using Sets = std::vector<std::pair<Parameters, bool>>;
  py::class_<PythonReplicated>(m, "RankParameters",
                               "Parameters of a pipeline's stages on this rank and its replicas.")
      .def(py::init([](const Sets& sets, ReplicaGroup& group, const ReplicaOptions& options,
                       const std::vector<PythonSpread*>& spread_before) {
             auto made = std::make_unique<PythonReplicated>(group);
             std::vector<parameters::ParameterSet> given;
             for (const auto& [parameters, goes] : sets) {
               given.push_back(
                   {named(parameters), goes ? partition::MayLeave::Yes : partition::MayLeave::No});
             }
             without_gil(group.communicator, [&] {
               made->parameters.emplace(given, options, modules_of(spread_before), group.group,
                                        group.communicator);
             });
             return made;
           }),
           py::arg("sets"), py::arg("group"), py::arg("options"), py::arg("spread_before"),
           py::keep_alive<1, 3>(),
           "Collective.  sets: parameters, names and tensors, and whether trainable ones may come "
           "and go; values become those of the first replica.")
      .def(
          "parts", [](const PythonReplicated& r) { return parts_of(r.parameters->parts()); },
          "What this rank updates: number of the trainable parameter, first element, tensor.")
      .def(
          "kept", [](const PythonReplicated& r) { return r.parameters->kept(); },
          "By set, what this rank has of parameters.")
      .def(
          "update",
          [](const PythonReplicated& r, const UpdateRequest& request) {
            return make_update(r.parameters->parts(), request);
          },
          py::arg("request"), py::keep_alive<0, 1>(), "Of parts().")
      .def(
          "spread",
          [](PythonReplicated& r, std::size_t set) -> std::unique_ptr<PythonSpread> {
            if (r.parameters->spread(set) == nullptr) return nullptr;
            return std::make_unique<PythonSpread>(*r.parameters->spread(set), r.group);
          },
          py::arg("set"), py::keep_alive<0, 1>(),
          "The parameters of a set that come and go, if there are any.")
      .def_property_readonly(
          "spread_place", [](const PythonReplicated& r) { return r.parameters->spread_place(); },
          "By parameter, its number in its set's `spread`, or None.")
      .def(
          "take_over",
          [](PythonReplicated& r) {
            call(r, [](RankParameters& all) { all.changes().take_over(); });
          },
          "Parameters that were given other memory train on with what they are now.")
      .def(
          "squared_norms",
          [](PythonReplicated& r) {
            return call(r, [](RankParameters& all) { return all.squared_norms(); });
          },
          "Collective: by trainable parameter, of its gradient.")
      .def("drop_gradients", [](PythonReplicated& r) { r.parameters->drop_gradients(); })
      .def(
          "gather", [](PythonReplicated& r) { call(r, [](RankParameters& all) { all.gather(); }); },
          "Collective, after an update: brings the other replicas' parts.")
      .def_property_readonly(
          "paging", [](const PythonReplicated& r) { return numbers_of(r.parameters->paging()); },
          "Of the last run: uses, faults, prefetches, drops, peak_bytes.");
}

}  // namespace

void init_replica(py::module_& m) {
  m.def(
      "unobserved",
      [](const py::typing::Callable<py::object()>& function) {
        const parameters::Unobserved unobserved;
        return function();
      },
      py::arg("function"), "Calls what reads no values: its operators bring no parameters.");
  init_places(m);
  init_options(m);
  init_spread(m);
  init_replicated(m);
  py::class_<PythonReplica>(m, "ModuleReplica",
                            "One replica of a module: what the replicas do together.")
      .def(py::init<const Parameters&, ReplicaGroup&, const ReplicaOptions&, const OptionalScale&,
                    double, const std::vector<PythonSpread*>&>(),
           py::arg("parameters"), py::arg("group"), py::arg("options"), py::arg("scale"),
           py::arg("divisor"), py::arg("spread_before"), py::keep_alive<1, 3>(),
           "Collective: parameters, names and tensors; values become those of rank 0.\n\n"
           "scale: of losses.  divisor: of sums over the replicas.")
      .def(
          "parts", [](const PythonReplica& r) { return parts_of(r.replica->parts()); },
          "What this rank updates: number of the trainable parameter, first element, tensor.")
      .def(
          "kept", [](const PythonReplica& r) { return r.replica->kept(); },
          "What this rank has of parameters.")
      .def(
          "update",
          [](const PythonReplica& r, const UpdateRequest& request) {
            return make_update(r.replica->parts(), request);
          },
          py::arg("request"), py::keep_alive<0, 1>(), "Of parts().")
      .def(
          "spread",
          [](PythonReplica& r) -> std::unique_ptr<PythonSpread> {
            if (r.replica->spread() == nullptr) return nullptr;
            return std::make_unique<PythonSpread>(*r.replica->spread(), r.group);
          },
          py::keep_alive<0, 1>(), "The parameters that come and go, if there are any.")
      .def_property_readonly(
          "spread_place", [](const PythonReplica& r) { return r.replica->spread_place(); },
          "By parameter, its number in `spread`, or None.")
      .def(
          "take_over",
          [](PythonReplica& r) { r.call([](ModuleReplica& replica) { replica.take_over(); }); },
          "Parameters that were given other memory train on with what they are now.")
      .def(
          "begin_forward",
          [](PythonReplica& r, bool trains) {
            r.begin_forward(trains ? train::Forward::Training : train::Forward::Evaluation);
          },
          py::arg("trains"), "From here on operators may bring parameters.")
      .def(
          "begin_outside", [](PythonReplica& r) { r.begin_forward(train::Forward::Outside); },
          "The same, for single operators that are in no forward; end_forward() ends it.")
      .def("end_forward", &PythonReplica::end_forward)
      .def(
          "abandon", &PythonReplica::abandon,
          "The call that was under way has failed; raises what is behind it, if operators know it.")
      .def("backward", &PythonReplica::backward, py::arg("loss"), py::arg("factor"),
           py::arg("ends"), py::arg("retain_graph"),
           "Adds the gradients of loss x factor x scale; the one that ends an accumulation sums "
           "them over the replicas.")
      .def(
          "accept_backwards", [](PythonReplica& r) { r.replica->backwards().accept(); },
          "A script's own backwards may add to gradients.")
      .def(
          "ignore_backwards", [](PythonReplica& r) { r.replica->backwards().ignore(); },
          "Another engine has all of the parameters, and says which backwards there may be.")
      .def(
          "refuse_backwards",
          [](PythonReplica& r, const std::string& why) { r.replica->backwards().refuse(why); },
          py::arg("why"), "A script's own backwards end with an Error that says why.")
      .def_property_readonly(
          "adds_gradients", [](PythonReplica& r) { return r.replica->backwards().add_now(); },
          "Whether the backward that runs may add to gradients.")
      .def_property_readonly(
          "has_sums", [](const PythonReplica& r) { return r.replica->has_sums(); },
          "Whether the accumulation has ended.")
      .def("begin_backward", &PythonReplica::begin_backward,
           "A script's own backward begins: from here on operators may bring parameters.")
      .def("end_backward", &PythonReplica::end_backward)
      .def(
          "sum_gradients",
          [](PythonReplica& r) { r.call([](ModuleReplica& all) { all.sum_gradients(); }); },
          "Collective: ends an accumulation that no backward() has ended.")
      .def(
          "squared_norms",
          [](PythonReplica& r, std::vector<double> words) {
            auto norms =
                r.call([&words](ModuleReplica& replica) { return replica.squared_norms(words); });
            return std::pair(std::move(norms), std::move(words));
          },
          py::arg("words"),
          "Collective: by trainable parameter, of its gradient; and what all replicas say.  words: "
          "a number for each of them, of which this one has set its own.")
      .def("drop_gradients", [](PythonReplica& r) { r.replica->drop_gradients(); })
      .def(
          "gather",
          [](PythonReplica& r) { r.call([](ModuleReplica& replica) { replica.gather(); }); },
          "Collective, after an update: brings the other replicas' parts.")
      .def_property_readonly(
          "paging", [](const PythonReplica& r) { return numbers_of(r.replica->paging()); },
          "Of the last run: uses, faults, prefetches, drops, peak_bytes.");
}

}  // namespace penstock::bindings
