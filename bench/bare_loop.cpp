// The floor: torch modules, torch's backward, and the messages of a schedule over the transport of
// penstock's own run, in a plain loop over the schedule.
//
// Nothing is checked, shapes are known, all receives of a step are posted before it: what a runtime
// can hope to come close to.  A split backward is a whole one in the place of its I.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "bench/pipe.h"

namespace {

using namespace penstock;
using bench::now_ms;
using bench::Options;
using schedule::Action;
using schedule::Op;

constexpr std::int64_t kBlocks = 8;

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
  BareRank(const Options& options, int rank, const std::string& store)
      : options_(options),
        verified_(bench::schedule_of(options)),
        program_(verified_.schedule().programs[static_cast<std::size_t>(rank)]),
        stages_(verified_.schedule().stages),
        rank_(rank),
        pair_((at::set_num_threads(1), options), rank, store) {
    torch::manual_seed(rank);
    std::vector<torch::Tensor> parameters;
    for (std::int32_t s = 0; s < stages_; ++s) {
      nets_.emplace_back();
      if (verified_.rank_of(StageId(s)) != Rank(rank)) continue;
      for (std::int64_t b = 0; b < kBlocks / stages_; ++b) {
        nets_.back()->push_back(std::make_shared<Block>(options.width));
      }
      for (auto& parameter : nets_.back()->parameters()) parameters.push_back(parameter);
    }
    optimizer_ = std::make_unique<torch::optim::SGD>(parameters, 0.0);
    inputs_ = torch::randn({options.batch, options.width}).chunk(options.microbatches);
    targets_ = torch::randn({options.batch, options.width}).chunk(options.microbatches);
    const auto cells = static_cast<std::size_t>(stages_) * inputs_.size();
    for (auto* values : {&activations_, &outputs_, &gradients_, &input_gradients_}) {
      values->resize(cells);
    }
    receives_.resize(2 * cells);
  }

  int run() {
    std::vector<double> times;
    for (long step = 0; step < options_.steps + 5; ++step) {
      optimizer_->zero_grad();
      pair_.meet();
      const double start = now_ms();
      post_receives();
      for (const Action& action : program_) act(action);
      for (const auto& send : sends_) send->wait();
      sends_.clear();
      if (options_.sgd) optimizer_->step();
      const double slower = pair_.meet(now_ms() - start);
      if (step >= 5) times.push_back(slower);
    }
    if (rank_ == 0) bench::print_result("bare", options_, times);
    pair_.communicator().barrier("end");
    return 0;
  }

 private:
  std::size_t cell(std::int32_t stage, const Action& action) const {
    return static_cast<std::size_t>(stage) * inputs_.size() + action.microbatch->index();
  }
  bool here(std::int32_t stage) const { return verified_.rank_of(StageId(stage)) == Rank(rank_); }
  // A message is named by its receiver.
  std::int32_t tag(std::int32_t receiver, const Action& action, bool forward) const {
    return static_cast<std::int32_t>(cell(receiver + (forward ? 0 : stages_), action));
  }

  void post_receives() {
    const std::int64_t rows = options_.batch / options_.microbatches;
    for (const Action& action : program_) {
      if (!schedule::is_receive(action.op)) continue;
      const bool forward = action.op == Op::RecvForward;
      const std::int32_t stage = action.stage.value;
      auto& into = (forward ? activations_ : gradients_)[cell(stage, action)];
      into = torch::empty({rows, options_.width});
      receives_[static_cast<std::size_t>(tag(stage, action, forward))] =
          pair_.communicator().receive(into, Rank(1 - rank_), tag(stage, action, forward));
    }
  }

  void send(const torch::Tensor& value, std::int32_t receiver, const Action& action, bool forward) {
    sends_.push_back(
        pair_.communicator().send(value, Rank(1 - rank_), tag(receiver, action, forward)));
  }

  void act(const Action& action) {
    // Messages go when their values are there; a W has been run by its I.
    if (action.op == Op::Forward) forward(action);
    if (action.op == Op::Backward || action.op == Op::BackwardInput) backward(action);
  }

  void forward(const Action& action) {
    const std::int32_t s = action.stage.value;
    const std::size_t m = action.microbatch->index();
    torch::Tensor& input = activations_[cell(s, action)];
    if (s > 0 && !here(s - 1)) receives_[static_cast<std::size_t>(tag(s, action, true))]->wait();
    if (s == 0) input = inputs_[m];
    if (s > 0) input.requires_grad_(true);
    torch::Tensor output = nets_[static_cast<std::size_t>(s)]->forward(input);
    if (s + 1 == stages_) {
      output = torch::mse_loss(output, targets_[m], at::Reduction::Sum);
    } else if (here(s + 1)) {
      activations_[cell(s + 1, action)] = output.detach();
    } else {
      send(output.detach(), s + 1, action, true);
    }
    outputs_[cell(s, action)] = output;
  }

  void backward(const Action& action) {
    const std::int32_t s = action.stage.value;
    torch::Tensor& output = outputs_[cell(s, action)];
    if (s + 1 == stages_) {
      output.backward();
    } else {
      if (!here(s + 1)) receives_[static_cast<std::size_t>(tag(s, action, false))]->wait();
      torch::autograd::backward({output}, {gradients_[cell(s, action)]});
    }
    output.reset();
    torch::Tensor& input = activations_[cell(s, action)];
    if (s > 0 && here(s - 1)) {
      gradients_[cell(s - 1, action)] = input.grad();
    } else if (s > 0) {
      // Kept until the end of the step: a transport may still read it.
      input_gradients_[cell(s, action)] = input.grad();
      send(input.grad(), s - 1, action, false);
    }
    input.reset();
  }

  const Options& options_;
  verify::VerifiedSchedule verified_;
  const schedule::Program& program_;
  std::int32_t stages_;
  int rank_;
  bench::Pair pair_;
  std::vector<torch::nn::Sequential> nets_;  // Nets by stage; empty on the other rank.
  std::unique_ptr<torch::optim::SGD> optimizer_;
  std::vector<torch::Tensor> inputs_, targets_;  // Tensors by microbatch.
  // Tensors by stage and microbatch.
  std::vector<torch::Tensor> activations_, outputs_, gradients_, input_gradients_;
  std::vector<std::unique_ptr<comm::Transfer>> receives_;  // Transfers by tag.
  std::vector<std::unique_ptr<comm::Transfer>> sends_;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = bench::parse(argc, argv);
  return bench::run_ranks(
      2, [&](int rank, const std::string& store) { return BareRank(options, rank, store).run(); });
}
