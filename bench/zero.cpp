// penstock's Trainer on the ZeRO benchmark: two replicas of one stage, without data or metrics.
//
// The model is that of the pipeline benchmark, eight blocks of Linear, ReLU, Linear.  `batch` is
// that of one replica.  A step has its forward, backward, sums and update, and the loss and the
// gradient norm that a Trainer reports.  `peak_rss_mb` is the larger rank's, since it began.
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>

#include "bench/pipe.h"
#include "penstock/core/text.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/train/trainer.h"

namespace {

using namespace penstock;
using bench::Options;

train::ZeroStage stage_of(const std::string& mode) {
  const std::map<std::string, train::ZeroStage> stages = {
      {"zero0", train::ZeroStage::Off},
      {"zero1", train::ZeroStage::OptimizerStates},
      {"zero2", train::ZeroStage::Gradients},
      {"zero3", train::ZeroStage::Parameters}};
  const auto found = stages.find(mode);
  if (found != stages.end()) return found->second;
  std::fprintf(stderr, "--mode %s: zero0, zero1, zero2 or zero3\n", mode.c_str());
  std::exit(2);
}

double peak_rss_mb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

void run(const Options& options, int rank, bench::Pair& pair) {
  const config::OptimizerConfig sgd{.type = config::OptimizerType::Sgd, .lr = 1e-6};
  train::Trainer trainer(
      {.mesh = {.pipe = 1, .data = 2},
       .schedule = "gpipe",
       .microbatches = static_cast<std::int32_t>(options.microbatches),
       .optimizer = options.adam ? config::OptimizerConfig{.lr = 1e-6} : sgd,
       .zero = {.stage = stage_of(options.mode)}},
      nn::mlp_layers(options.width, 8),
      [](const at::Tensor& output, const at::Tensor& target) {
        return at::mse_loss(output, target, at::Reduction::Sum);
      },
      pair.communicator());
  const at::Tensor input = at::randn({options.batch, options.width});
  const at::Tensor target = at::randn({options.batch, options.width});
  std::vector<double> times =
      bench::time_steps(pair, options, /*warmup=*/5, [&] { trainer.step(input, target); });
  const double rss = pair.meet(peak_rss_mb());
  if (rank == 0) {
    bench::print_result("penstock", options, std::move(times),
                        str(", \"mode\": \"", options.mode, "\", \"peak_rss_mb\": ", rss));
  }
}

}  // namespace

int main(int argc, char** argv) { return bench::main_of_pair(argc, argv, run); }
