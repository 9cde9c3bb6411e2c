// The floor: a hand-written 1F1B loop for two ranks over Gloo, with no framework at all.
//
// Rank 0 has the first four blocks, rank 1 the last four and the loss.  All receives are posted
// before the step, nothing is checked, shapes are known: what a runtime can hope to come close to.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "bench/two_ranks.h"

namespace {

using penstock::bench::now_ms;
using penstock::bench::Options;
using Work = c10::intrusive_ptr<c10d::Work>;

struct Block : torch::nn::Module {
  explicit Block(long width)
      : net1(register_module("net1", torch::nn::Linear(width, width))),
        net2(register_module("net2", torch::nn::Linear(width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return net2->forward(torch::relu(net1->forward(x)));
  }
  torch::nn::Linear net1, net2;
};

class BareRank {
 public:
  BareRank(const Options& options, int rank, const std::string& path)
      : options_(options), rank_(rank), microbatches_(static_cast<size_t>(options.microbatches)) {
    at::set_num_threads(1);
    auto store = c10::make_intrusive<c10d::FileStore>(path, 2);
    auto gloo = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
    gloo->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, 2, gloo);
    torch::manual_seed(rank);
    for (int i = 0; i < 4; ++i) net_->push_back(std::make_shared<Block>(options.width));
    inputs_ = torch::randn({options.batch, options.width}).chunk(options.microbatches);
    targets_ = torch::randn({options.batch, options.width}).chunk(options.microbatches);
    optimizer_ = std::make_unique<torch::optim::SGD>(net_->parameters(), 0.0);
  }

  int run() {
    std::vector<double> times;
    for (long step = 0; step < options_.steps + 5; ++step) {
      for (auto& parameter : net_->parameters()) parameter.mutable_grad().reset();
      meet(0.0);
      const double start = now_ms();
      if (rank_ == 0)
        first();
      else
        last();
      if (options_.sgd) optimizer_->step();
      const double slower = meet(now_ms() - start);
      if (step >= 5) times.push_back(slower);
    }
    if (rank_ == 0) penstock::bench::print_result("bare", options_, times);
    return 0;
  }

 private:
  double meet(double value) {
    std::vector<torch::Tensor> both = {torch::full({1}, value, torch::kDouble)};
    c10d::AllreduceOptions maximum;
    maximum.reduceOp = c10d::ReduceOp::MAX;
    group_->allreduce(both, maximum)->wait();
    return both[0].item<double>();
  }

  Work post_receive(torch::Tensor& buffer, int from, size_t tag) {
    buffer = torch::empty({options_.batch / options_.microbatches, options_.width});
    std::vector<torch::Tensor> buffers = {buffer};
    return group_->recv(buffers, from, static_cast<int>(tag));
  }
  void send(const torch::Tensor& value, int to, size_t tag) {
    std::vector<torch::Tensor> values = {value};
    sends_.push_back(group_->send(values, to, static_cast<int>(tag)));
  }
  void finish_sends() {
    for (auto& work : sends_) work->wait();
    sends_.clear();
  }

  void first() {
    std::vector<torch::Tensor> outputs(microbatches_), gradients(microbatches_);
    std::vector<Work> receives(microbatches_);
    for (size_t m = 0; m < microbatches_; ++m) {
      receives[m] = post_receive(gradients[m], 1, microbatches_ + m);
    }
    const auto forward = [&](size_t m) {
      outputs[m] = net_->forward(inputs_[m]);
      send(outputs[m].detach(), 1, m);
    };
    const auto backward = [&](size_t m) {
      receives[m]->wait();
      torch::autograd::backward({outputs[m]}, {gradients[m]});
      outputs[m].reset();
    };
    const size_t warmup = std::min<size_t>(2, microbatches_);
    for (size_t m = 0; m < warmup; ++m) forward(m);
    for (size_t m = 0; m < microbatches_; ++m) {
      backward(m);
      if (m + warmup < microbatches_) forward(m + warmup);
    }
    finish_sends();
  }

  void last() {
    std::vector<torch::Tensor> activations(microbatches_);
    std::vector<Work> receives(microbatches_);
    for (size_t m = 0; m < microbatches_; ++m) receives[m] = post_receive(activations[m], 0, m);
    for (size_t m = 0; m < microbatches_; ++m) {
      receives[m]->wait();
      const auto input = activations[m].requires_grad_(true);
      const auto loss = torch::mse_loss(net_->forward(input), targets_[m], at::Reduction::Sum);
      loss.backward();
      send(input.grad(), 0, microbatches_ + m);
      activations[m].reset();
    }
    finish_sends();
  }

  const Options& options_;
  int rank_;
  size_t microbatches_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  torch::nn::Sequential net_;
  std::vector<torch::Tensor> inputs_, targets_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  std::vector<Work> sends_;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = penstock::bench::parse(argc, argv);
  return penstock::bench::run_two_ranks(
      [&](int rank, const std::string& store) { return BareRank(options, rank, store).run(); });
}
