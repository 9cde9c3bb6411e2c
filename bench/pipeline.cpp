// penstock itself on the peers' pipeline benchmark: plan, executor and Gloo as `penstock train`
// uses them, without data or metrics.
#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include "bench/two_ranks.h"
#include "penstock/comm/communicator.h"
#include "penstock/core/text.h"
#include "penstock/execute/executor.h"
#include "penstock/nn/mlp.h"
#include "penstock/schedule/generators/generators.h"
#include "penstock/schedule/passes/passes.h"
#include "penstock/train/optimizer.h"

namespace {

using namespace penstock;
using bench::now_ms;
using bench::Options;

comm::Transport transport_of(const std::string& name) {
  if (name == "gloo") return comm::Transport::Gloo;
  if (name == "tcp") return comm::Transport::Tcp;
  return name == "shm" ? comm::Transport::Shm : comm::Transport::Auto;
}

int run_rank(const Options& options, int rank, const std::string& path) {
  at::set_num_threads(1);
  const auto communicator = comm::connect({.kind = comm::Rendezvous::Kind::File,
                                           .path = path,
                                           .rank = Rank(rank),
                                           .world_size = 2,
                                           .transport = transport_of(options.transport)},
                                          std::chrono::seconds(60));
  communicator->link({Rank(1 - rank)});
  const comm::Group both = communicator->make_group({Rank(0), Rank(1)});
  const auto meet = [&](double value) {
    // Each rank's time in a place of its own: the sum keeps both.
    const at::Tensor times = at::zeros({2}, at::kDouble);
    times.data_ptr<double>()[rank] = value;
    communicator->all_reduce(times, both)->wait();
    return std::max(times.data_ptr<double>()[0], times.data_ptr<double>()[1]);
  };

  const auto mesh = mesh::make_mesh(2, {.pipe = 2, .data = 1});
  const auto model = nn::mlp_layers(options.width, 8);
  const auto partition = partition::partition(nn::meta_of(model), 2, partition::Uniform{});
  const auto verified =
      verify::VerifiedSchedule::from(schedule::lower_communication(schedule::make_schedule(
          options.schedule,
          {.ranks = 2, .microbatches = static_cast<std::int32_t>(options.microbatches)})));
  const auto count = std::make_shared<stage::ActivationCount>();
  stage::Stage stage(StageId(rank), model, partition.first_layer(StageId(rank)),
                     partition.end_layer(StageId(rank)), /*seed=*/0, count);
  execute::Progress progress;
  execute::Executor executor(lower::lower(verified, partition, mesh, Rank(rank)), {&stage}, {},
                             *communicator, progress);
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : stage.parameters()) parameters.push_back(parameter.tensor);
  train::Optimizer optimizer({.type = config::OptimizerType::Sgd}, parameters);

  const auto random_microbatches = [&] {
    const auto chunks = at::randn({options.batch, options.width}).chunk(options.microbatches);
    return std::vector<nn::Values>(chunks.begin(), chunks.end());
  };
  const execute::StepInputs inputs{.inputs = random_microbatches(),
                                   .targets = random_microbatches(),
                                   .loss = [](const at::Tensor& output, const at::Tensor& target) {
                                     return at::mse_loss(output, target, at::Reduction::Sum);
                                   }};
  std::vector<double> times;
  for (long step = 0; step < options.steps + 5; ++step) {
    stage.drop_gradients();
    meet(0.0);
    const double start = now_ms();
    executor.run(inputs);
    if (options.sgd) optimizer.step(0.0);
    const double slower = meet(now_ms() - start);
    if (step >= 5) times.push_back(slower);
  }
  const double peak = meet(count->peak);
  if (rank == 0) {
    bench::print_result(
        "penstock", options, times,
        penstock::str(", \"peak_activations\": ", peak,
                      ", \"planned_activations\": ", verified.facts().peak_activations[0]));
  }
  communicator->barrier("end");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = bench::parse(argc, argv);
  return bench::run_two_ranks(
      [&](int rank, const std::string& store) { return run_rank(options, rank, store); });
}
