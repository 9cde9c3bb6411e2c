// penstock's Trainer on a small Llama over two pipeline ranks, and the bound of its computations.
//
// bench/peers/language_model.py has the same models, cut in the same places.  --model llama: eight
// blocks of width 256, 8,192 tokens in the vocabulary, sequences of 256.  --model smollm2: the
// shape of SmolLM2-135M, sequences of 512, its embedding and its head not tied; smollm2_adapters:
// with LoRA of rank 16 on all linears of its blocks.  A step has forwards, backwards, messages, and
// AdamW.  `peak_rss_mb` is the last stage's, `start_rss_mb` what it had before its first step.
// With --mode bound, each rank runs the forwards and backwards of its stage and the optimizer in a
// plain loop, both ranks at once, without messages.  The schedule is simulated with those times and
// messages that take no time: no runtime with these layers can be faster.
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>

#include <fstream>

#include "bench/pipe.h"
#include "penstock/core/check.h"
#include "penstock/core/text.h"
#include "penstock/nn/decoder.h"
#include "penstock/nn/token_loss.h"
#include "penstock/runtime/offload/kept_memory.h"
#include "penstock/runtime/update/optimizer.h"
#include "penstock/simulate/simulate.h"
#include "penstock/train/trainer.h"

namespace {

using namespace penstock;
using bench::now_ms;
using bench::Options;

constexpr long kWarmup = 2;

struct Model {
  nn::DecoderOptions decoder;
  std::int64_t cut = 0;  // Layers of the first stage: the embedding and blocks.
};

Model llama() {
  return {.decoder = {.vocabulary = 8192,
                      .layers = 8,
                      .hidden = 256,
                      .intermediate = 688,
                      .heads = 4,
                      .kv_heads = 4,
                      .head_dim = 64,
                      .positions = 256},
          .cut = 6};
}

Model smollm2() {
  return {.decoder = {.vocabulary = 49152,
                      .layers = 30,
                      .hidden = 576,
                      .intermediate = 1536,
                      .heads = 9,
                      .kv_heads = 3,
                      .head_dim = 64,
                      .positions = 512},
          .cut = 20};
}

Model model_of(const Options& options) {
  if (options.model == "llama") return llama();
  Model model = smollm2();
  if (options.model == "smollm2") return model;
  PENSTOCK_CHECK(options.model == "smollm2_adapters", "--model");
  model.decoder.adapter = {.rank = 16, .alpha = 32.0, .targets = std::string(nn::kAllLinears)};
  return model;
}

config::OptimizerConfig adamw() { return {.lr = 1e-5}; }

double peak_rss_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

double rss_mb() {
  long pages = 0;
  long resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return static_cast<double>(resident * ::sysconf(_SC_PAGESIZE)) / (1024 * 1024);
}

at::Tensor random_tokens(const Model& model, long sequences) {
  return at::randint(model.decoder.vocabulary, {sequences, model.decoder.positions}, at::kLong);
}

void train(const Options& options, int rank, bench::Pair& pair) {
  const Model model = model_of(options);
  auto layers = nn::decoder_layers(model.decoder);
  const auto end = std::ssize(layers);
  train::Trainer trainer({.mesh = {.pipe = 2},
                          .schedule = options.schedule,
                          .microbatches = static_cast<std::int32_t>(options.microbatches),
                          .partition = partition::ByBounds{{0, model.cut, end}},
                          .optimizer = adamw()},
                         std::move(layers), nn::Loss(nn::mean_token_loss).of_any_type(),
                         pair.communicator());
  const at::Tensor tokens = random_tokens(model, options.batch);
  const at::Tensor targets = random_tokens(model, options.batch);
  const double start_rss = rss_mb();
  long step = 0;
  double faults = 0.0;
  std::vector<double> times = bench::time_steps(pair, options, kWarmup, [&] {
    if (step++ == kWarmup) faults = bench::page_faults();
    trainer.step(tokens, targets);
  });
  faults = pair.meet((bench::page_faults() - faults) / static_cast<double>(options.steps));
  const double peak = pair.meet(rank == 1 ? peak_rss_mb() : 0.0);
  const double before = pair.meet(rank == 1 ? start_rss : 0.0);
  if (rank == 0) {
    bench::print_result("penstock", options, std::move(times),
                        str(", \"peak_rss_mb\": ", peak, ", \"start_rss_mb\": ", before,
                            ", \"page_faults\": ", faults));
  }
}

// One rank's stage as modules and torch's autograd alone.
class PlainStage {
 public:
  PlainStage(const Options& options, int rank)
      : options_(options), model_(model_of(options)), rank_(rank) {
    const auto specs = nn::decoder_layers(model_.decoder);
    const std::int64_t end = rank == 0 ? model_.cut : std::ssize(specs);
    std::vector<at::Tensor> parameters;
    for (std::int64_t i = rank == 0 ? 0 : model_.cut; i < end; ++i) {
      layers_.push_back(nn::build(specs[static_cast<std::size_t>(i)], /*seed=*/0, i));
      for (const auto& parameter : layers_.back()->parameters()) {
        if (parameter.requires_grad()) parameters.push_back(parameter);
      }
    }
    parameters_ = parameters;
    optimizer_ = std::make_unique<update::Optimizer>(adamw(), std::move(parameters));
    const auto microbatches = static_cast<std::size_t>(options.microbatches);
    inputs_.resize(microbatches);
    outputs_.resize(microbatches);
    targets_ = random_tokens(model_, options.batch).chunk(options.microbatches);
  }

  void forward(std::size_t m) {
    const long rows = options_.batch / options_.microbatches;
    const nn::DecoderOptions& decoder = model_.decoder;
    inputs_[m] = rank_ == 0 ? random_tokens(model_, rows)
                            : at::randn({rows, decoder.positions, decoder.hidden}).requires_grad_();
    at::Tensor x = inputs_[m];
    for (const auto& layer : layers_) x = layer->forward(x);
    if (rank_ == 1) x = nn::mean_token_loss(x, targets_[m]);
    outputs_[m] = std::move(x);
  }

  void backward(std::size_t m) {
    const at::Tensor output = std::move(outputs_[m]);
    const at::Tensor seed = rank_ == 1 ? at::Tensor() : at::randn(output.sizes());
    torch::autograd::backward({output}, {seed});
    inputs_[m].reset();
  }

  void update() {
    optimizer_->step(adamw().lr);
    for (auto& parameter : parameters_) parameter.mutable_grad().reset();
  }

 private:
  const Options& options_;
  Model model_;
  int rank_;
  std::vector<std::shared_ptr<nn::Layer>> layers_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<update::Optimizer> optimizer_;
  std::vector<at::Tensor> inputs_, outputs_, targets_;  // Tensors by microbatch.
};

double timed(const std::function<void()>& work) {
  const double start = now_ms();
  work();
  return now_ms() - start;
}

void bound(const Options& options, int rank, bench::Pair& pair) {
  const auto verified = bench::schedule_of(options);
  PlainStage stage(options, rank);
  std::vector<double> bounds;
  for (long step = 0; step < options.steps + kWarmup; ++step) {
    pair.meet();
    double forward = 0.0;
    double backward = 0.0;
    for (const auto& action : verified.schedule().programs[static_cast<std::size_t>(rank)]) {
      if (!schedule::is_compute(action.op)) continue;
      const std::size_t m = action.microbatch->index();
      if (action.op == schedule::Op::Forward) {
        forward += timed([&] { stage.forward(m); });
      } else {
        backward += timed([&] { stage.backward(m); });
      }
    }
    const double optimizer = timed([&] { stage.update(); });
    std::vector<double> forwards(2);
    std::vector<double> backwards(2);
    for (const int r : {0, 1}) {
      const auto at = static_cast<std::size_t>(r);
      const auto microbatches = static_cast<double>(options.microbatches);
      forwards[at] = pair.meet(rank == r ? forward / microbatches : 0.0);
      backwards[at] = pair.meet(rank == r ? backward / microbatches : 0.0);
    }
    simulate::Costs costs;
    costs.forward = forwards;
    costs.backward = backwards;
    costs.optimizer = pair.meet(optimizer);
    const auto simulated = simulate::simulate(verified, costs, simulate::Detail::Totals);
    if (step >= kWarmup) bounds.push_back(simulated.makespan);
  }
  if (rank == 0) bench::print_result("bound", options, std::move(bounds));
}

void run(const Options& options, int rank, bench::Pair& pair) {
  offload::keep_freed_memory();  // Ranks of penstock train do.
  options.mode == "bound" ? bound(options, rank, pair) : train(options, rank, pair);
}

}  // namespace

int main(int argc, char** argv) { return bench::main_of_pair(argc, argv, run); }
