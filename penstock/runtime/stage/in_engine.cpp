#include "penstock/runtime/stage/in_engine.h"

#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <exception>

#include "penstock/core/error.h"
#include "penstock/core/exception_text.h"
#include "penstock/runtime/nn/torch_versions.h"

namespace penstock::stage {
namespace {

class Call : public torch::autograd::Node {
 public:
  Call(const std::function<void()>& function, const at::Tensor& gradient) : function_(function) {
    add_input_metadata(gradient);
  }
  std::string name() const override { return "StageBackward"; }

 private:
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override {
    try {
      function_();
    } catch (const std::exception&) {
      throw;
    } catch (...) {
      // Turned into an Error, because the engine knows nothing of other exceptions.
      throw Error(handled_text());
    }
    return {};
  }

  const std::function<void()>& function_;
};

}  // namespace

void in_engine(const std::function<void()>& function) {
  static const at::Tensor gradient = at::zeros({});  // The engine wants one; nobody looks at it.
  const nn::NodePointer call = nn::make_node<Call>(function, gradient);
  torch::autograd::Engine::get_default_engine().execute({{call, 0}}, {gradient},
                                                        /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true);
}

}  // namespace penstock::stage
