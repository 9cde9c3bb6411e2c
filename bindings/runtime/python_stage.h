// A stage that is a Python object, as the C++ library runs it.
//
// pipeline.cpp makes them; penstock/_engines/stages/stage_work.py has the objects.  Each call takes
// the GIL for its time.  Knows no modules: the object calls them.
#pragma once
#include <pybind11/pybind11.h>

#include <memory>

#include "penstock/nn/layer.h"
#include "penstock/runtime/execute/stage_hooks.h"

namespace penstock::bindings {

// forward(microbatch, tensors) -> tensors, with None for an empty place, needs_engine and
// splits_backward.  Its parameters are not the layer's: gradients arrive where the module has them.
class PythonLayer : public nn::Layer {
 public:
  explicit PythonLayer(const pybind11::object& stage);

  nn::Values forward_values(const nn::Values& inputs) override;
  void train(bool) override {}  // Modules are as the user has set them.
  // The script has seeded torch's generators itself.
  nn::TorchDraws torch_draws() const override { return nn::TorchDraws::FromDefaultGenerators; }
  bool needs_engine() const override { return needs_engine_; }
  bool splits_backward() const override;
  // Whether a backward may run another one within it: one of its graphs had Python's nodes.
  bool may_nest() const { return may_nest_; }

  // Looks at the graph that a forward or a loss has left, for what needs the engine.
  // REQUIRES: the GIL is held.
  void look_at_graph(const nn::Values& outputs);

 private:
  pybind11::object stage_;
  pybind11::object forward_;
  bool needs_engine_ = true;  // False once the first forward shows that it does not.
  bool may_nest_ = false;
  bool has_run_ = false;
};

// unshard(), reshard(), after_backward_input(microbatch), after_backward(microbatch) and finish().
class PythonHooks : public execute::StageHooks {
 public:
  explicit PythonHooks(pybind11::object hooks) : hooks_(std::move(hooks)) {}

  void unshard() override;
  void reshard() override;
  void after_backward_input(std::int64_t microbatch) override;
  void after_backward(std::int64_t microbatch) override;
  void finish() override;

 private:
  pybind11::object hooks_;
};

// A function of nothing: what it computes the loss of, it knows from its stage, the last one.
nn::Loss python_loss(const pybind11::function& loss, std::shared_ptr<PythonLayer> last);

}  // namespace penstock::bindings
