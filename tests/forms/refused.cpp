// Layers and losses that cannot be.  Each line with "refused" gives one error of the compiler, a
// static_assert of ours that says which forms there are: refused_test.py.
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/loss.h>

#include "penstock/nn/layer.h"

using at::Tensor;
using namespace penstock;

struct Plainly : torch::nn::Module {
  explicit Plainly(int width) : fc(register_module("fc", torch::nn::Linear(width, width))) {}
  Tensor forward(const Tensor& x) { return fc(x); }
  torch::nn::Linear fc;
};
struct NoForward : torch::nn::Module {};
class Private : public torch::nn::Module {
  Tensor forward(const Tensor& x) { return x; }
};
struct OfANumber : torch::nn::Module {
  Tensor forward(const Tensor& x, double factor) { return x * factor; }
};
struct GivesNothing : torch::nn::Module {
  void forward(const Tensor&) {}
};
struct GivesANumber : torch::nn::Module {
  double forward(const Tensor& x) { return x.item<double>(); }
};
struct NoModule {
  Tensor forward(const Tensor& x) { return x; }
};

void layers() {
  nn::layer("pointer", new Plainly(4));                                 // refused
  nn::layer("number", 4);                                               // refused
  nn::layer("no module", NoModule());                                   // refused
  nn::layer("no module made", [] { return 4.0F; });                     // refused
  nn::layer("nothing made", [] {});                                     // refused
  nn::layer("function", [](const Tensor& x, int n) { return x * n; });  // refused
  nn::layer("text", [](const Tensor&) { return std::string("x"); });    // refused
  nn::layer<NoForward>("no forward");                                   // refused
  nn::layer("private", [] { return std::make_shared<Private>(); });     // refused
  nn::layer<OfANumber>("of a number");                                  // refused
  nn::layer<GivesNothing>("nothing");                                   // refused
  nn::layer<GivesANumber>("a number");                                  // refused
  nn::layer<Plainly>("no arguments");                                   // refused
  nn::layer<Plainly>("other arguments", "four");                        // refused
  nn::layer<torch::nn::Linear>("of a holder", std::string("four"));     // refused
  nn::layer<int>("of no class");                                        // refused
}

void losses() {
  nn::Loss one_tensor = [](const Tensor& y) { return y.sum(); };                     // refused
  nn::Loss pair = [](const Tensor& y, const Tensor& t) { return std::pair(y, t); };  // refused
  nn::Loss number = [](const Tensor& y, double factor) { return y * factor; };       // refused
  nn::Loss base = std::shared_ptr<torch::nn::Module>();                              // refused
  nn::Loss pointer = new torch::nn::MSELossImpl();                                   // refused
  nn::Loss other = nn::loss<int>();                                                  // refused
  nn::Loss no_arguments = nn::loss<Plainly>();                                       // refused
}
