// penstock itself on the peers' pipeline benchmark: plan, executor and transport as `penstock
// train` uses them, without data or metrics.
//
// `cpu_share` is the processor time of each rank over the wall time of its steps, `page_faults` are
// those of a step on the rank that has more.  With --predict
// it measures what passes and messages cost, and prints what the simulation makes of them beside
// the measured step.  With --record every other step records its timeline, and has figures of its
// own.
#include <ATen/Parallel.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>

#include "bench/measured_costs.h"
#include "bench/pipe.h"
#include "penstock/core/text.h"
#include "penstock/runtime/execute/executor.h"
#include "penstock/runtime/nn/mlp.h"
#include "penstock/runtime/offload/kept_memory.h"
#include "penstock/runtime/update/optimizer.h"
#include "penstock/simulate/simulate.h"

namespace {

using namespace penstock;
using bench::cpu_ms;
using bench::now_ms;
using bench::Options;

// Times of the steps that recorded their timelines.
std::string recorded_text(std::vector<double> times) {
  if (times.empty()) return "";
  std::sort(times.begin(), times.end());
  return str(", \"recorded_median_ms\": ", times[times.size() / 2],
             ", \"recorded_min_ms\": ", times.front());
}

class PipelineRank {
 public:
  PipelineRank(const Options& options, int rank, const std::string& store)
      : options_(options),
        rank_(rank),
        verified_(bench::schedule_of(options)),
        pair_((at::set_num_threads(1), options), rank, store) {
    const auto model = nn::mlp_layers(options.width, 8);
    const auto partition =
        partition::partition(nn::meta_of(model), verified_.schedule().stages, partition::Uniform{});
    for (std::int32_t s = 0; s < verified_.schedule().stages; ++s) {
      if (verified_.rank_of(StageId(s)) != Rank(rank)) continue;
      stages_.push_back(std::make_unique<stage::Stage>(
          StageId(s), model, partition.first_layer(StageId(s)), partition.end_layer(StageId(s)),
          /*seed=*/0, count_));
      chunks_.push_back(stages_.back().get());
    }
    const auto mesh = mesh::make_mesh(2, {.pipe = 2, .data = 1});
    executor_ = std::make_unique<execute::Executor>(
        lower::lower(verified_, partition, mesh, Rank(rank)), chunks_,
        std::vector<execute::StageHooks*>{}, pair_.communicator(), progress_);
    inputs_ = {.inputs = random_microbatches(),
               .targets = random_microbatches(),
               .loss = [](const at::Tensor& output, const at::Tensor& target) {
                 return at::mse_loss(output, target, at::Reduction::Sum);
               }};
  }

  int run() {
    const double predicted = options_.predict ? predict() : 0.0;
    count_->peak = 0;
    const double cpu_before = cpu_ms();
    const double wall_before = now_ms();
    std::vector<double> times = time_steps();
    const double faults = pair_.meet(faults_of_step_);
    const double share = (cpu_ms() - cpu_before) / (now_ms() - wall_before);
    const double shares[] = {pair_.meet(rank_ == 0 ? share : 0.0),
                             pair_.meet(rank_ == 1 ? share : 0.0)};
    const double peak = pair_.meet(count_->peak);
    const auto& planned = verified_.facts().peak_activations;
    if (rank_ == 0) {
      bench::print_result("penstock", options_, std::move(times),
                          str(", \"peak_activations\": ", peak, ", \"planned_activations\": ",
                              *std::ranges::max_element(planned), ", \"page_faults\": ", faults,
                              ", \"cpu_share\": [", shares[0], ", ", shares[1], "]", costs_text_,
                              recorded_text(std::move(recorded_times_)),
                              options_.predict ? str(", \"predicted_ms\": ", predicted) : ""));
    }
    pair_.communicator().barrier("end");
    return 0;
  }

 private:
  std::vector<nn::Values> random_microbatches() const {
    const auto chunks = at::randn({options_.batch, options_.width}).chunk(options_.microbatches);
    return {chunks.begin(), chunks.end()};
  }

  std::vector<double> time_steps() {
    std::vector<at::Tensor> parameters;
    for (const stage::Stage* stage : chunks_) {
      for (const auto& parameter : stage->parameters()) parameters.push_back(parameter.tensor);
    }
    update::Optimizer optimizer({.type = config::OptimizerType::Sgd}, parameters);
    std::vector<double> times;
    double faults = 0.0;
    for (long step = 0; step < options_.steps + 5; ++step) {
      if (step == 5) faults = bench::page_faults();
      for (stage::Stage* stage : chunks_) stage->drop_gradients();
      const bool records = options_.record && step % 2 == 1;
      if (records) executor_->record_next_run();
      pair_.meet();
      const double start = now_ms();
      executor_->run(inputs_);
      if (options_.sgd) optimizer.step(0.0);
      const double slower = pair_.meet(now_ms() - start);
      if (step >= 5) (records ? recorded_times_ : times).push_back(slower);
    }
    faults_of_step_ = (bench::page_faults() - faults) / static_cast<double>(options_.steps);
    return times;
  }

  // The makespan, in ms, from what passes cost in some steps: the mean of each op and stage, as a
  // step adds up many, from when its input was there.
  double predict() {
    constexpr int kSteps = 8;
    const auto stages = static_cast<std::size_t>(verified_.schedule().stages);
    // Times by kind of pass, then by stage.
    std::vector<std::vector<std::vector<double>>> times(4,
                                                        std::vector<std::vector<double>>(stages));
    for (int step = 0; step < kSteps; ++step) {
      for (stage::Stage* stage : chunks_) stage->drop_gradients();
      pair_.meet();
      executor_->record_next_run();
      executor_->run(inputs_);
      const auto& instructions = executor_->plan().instructions;
      for (const execute::Event& event : executor_->events()) {
        const auto index = static_cast<std::size_t>(event.instruction);
        if (index == instructions.size()) continue;  // The end of the step.
        const auto& action = instructions[index].action;
        if (step < kSteps / 2 || !schedule::is_compute(action.op)) continue;
        times[static_cast<std::size_t>(action.op)][action.stage.index()].push_back(
            1e-6 * static_cast<double>(event.end_ns - event.ready_ns));
      }
    }
    std::vector<std::vector<double>> rows(4, std::vector<double>(stages));
    for (std::size_t row = 0; row < rows.size(); ++row) {
      for (std::size_t s = 0; s < stages; ++s) {
        const auto& of_pass = times[row][s];
        if (of_pass.empty()) continue;
        rows[row][s] = std::accumulate(of_pass.begin(), of_pass.end(), 0.0) /
                       static_cast<double>(of_pass.size());
      }
    }
    for (auto& row : rows) {
      for (double& cost : row) cost = pair_.meet(cost);
    }
    simulate::Costs costs;
    const auto row_of = [&](schedule::Op op) { return rows[static_cast<std::size_t>(op)]; };
    costs.forward = row_of(schedule::Op::Forward);
    costs.backward = row_of(schedule::Op::Backward);
    costs.input = row_of(schedule::Op::BackwardInput);
    costs.weight = row_of(schedule::Op::BackwardWeight);
    costs.latency = bench::message_time(pair_, rank_, inputs_.inputs.front().front().numel(), 30);
    costs_text_ =
        str(", \"forward_ms\": [", join(rows[0], ", "), "], \"backward_ms\": [",
            join(rows[1], ", "), "], \"input_ms\": [", join(rows[2], ", "), "], \"weight_ms\": [",
            join(rows[3], ", "), "], \"latency_ms\": ", costs.latency);
    return simulate::simulate(verified_, costs, simulate::Detail::Totals).makespan;
  }

  const Options& options_;
  int rank_;
  verify::VerifiedSchedule verified_;
  bench::Pair pair_;
  std::shared_ptr<stage::ActivationCount> count_ = std::make_shared<stage::ActivationCount>();
  std::vector<std::unique_ptr<stage::Stage>> stages_;
  std::vector<stage::Stage*> chunks_;
  execute::Progress progress_;
  std::unique_ptr<execute::Executor> executor_;
  execute::StepInputs inputs_;
  std::vector<double> recorded_times_;
  std::string costs_text_;
  double faults_of_step_ = 0.0;  // Page faults of a timed step.
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = bench::parse(argc, argv);
  std::optional<bench::DelayedNetwork> network;
  if (options.delay_us > 0) network.emplace(std::chrono::microseconds(options.delay_us));
  return bench::run_ranks(2, [&](int rank, const std::string& store) {
    offload::keep_freed_memory();  // Ranks of penstock train do.
    if (network) network->enter(rank);
    return PipelineRank(options, rank, store).run();
  });
}
