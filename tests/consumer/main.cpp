// Trains a model of the user's own on two pipeline ranks and compares every step with a plain loop.
#include <penstock/train/trainer.h>
#include <torch/torch.h>

#include <atomic>

using namespace penstock;

struct Residual : torch::nn::Module {  // A module as in any LibTorch program.
  explicit Residual(int width) { fc = register_module("fc", torch::nn::Linear(width, width)); }
  at::Tensor forward(const at::Tensor& x) { return x + fc(x).tanh(); }
  torch::nn::Linear fc{nullptr};
};

int main() {
  at::set_num_threads(1);
  const std::vector<nn::LayerSpec> model = {
      nn::layer<torch::nn::Linear>("in", 4, 32),
      nn::layer("middle", [] { return std::make_shared<Residual>(32); }),
      nn::layer("out", [] { return torch::nn::Sequential(torch::nn::Linear(32, 1)); })};
  const auto loss = [](const at::Tensor& y, const at::Tensor& t) { return (y - t).abs().mean(); };
  const at::Tensor x = at::rand({64, 4}), target = x.sin().sum(1, /*keepdim=*/true);
  const train::TrainerOptions options{.mesh = {.pipe = 2},
                                      .microbatches = 8,
                                      .optimizer = {.type = config::OptimizerType::Sgd, .lr = 0.1}};

  // The plain loop: one process, the same microbatches.
  torch::nn::Sequential plain;
  std::map<std::string, at::Tensor> weights;
  for (const auto& spec : model) {
    const auto layer = nn::build(spec, options.seed, static_cast<int>(plain->size()));
    for (const auto& item : layer->named_parameters()) {
      weights[spec.meta.name + "." + item.key()] = item.value();
    }
    plain->push_back(layer);
  }
  torch::optim::SGD optimizer(plain->parameters(), 0.1);
  std::vector<double> losses(20);
  for (double& sum : losses) {
    optimizer.zero_grad();
    for (int m = 0; m < 8; ++m) {
      const at::Tensor mean = loss(plain->forward(x.chunk(8)[m]), target.chunk(8)[m]);
      (mean / 8).backward();
      sum += mean.item<double>() / 8;
    }
    optimizer.step();
  }

  std::atomic<int> differences = 0;
  comm::run_ranks(2, [&](comm::Communicator& communicator) {  // Each rank is a thread here.
    train::Trainer trainer(options, model, loss, communicator);
    for (const double expected : losses) differences += trainer.step(x, target).loss != expected;
    for (const auto& [name, tensor] : trainer.parameters()) {
      differences += !at::equal(tensor, weights.at(name));
    }
  });
  return differences == 0 ? 0 : 1;
}
