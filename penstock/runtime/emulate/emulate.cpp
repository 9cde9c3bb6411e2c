#include "penstock/runtime/emulate/emulate.h"

#include <ATen/ops/randint.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/plan/config/resolve.h"
#include "penstock/runtime/emulate/operators.h"
#include "penstock/runtime/emulate/timed_communicator.h"
#include "penstock/runtime/emulate/virtual_device.h"
#include "penstock/runtime/nn/host_kernels.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/run/timeline.h"
#include "penstock/train/trainer.h"

namespace penstock::emulate {
namespace {

constexpr std::chrono::minutes kDeadline(10);
constexpr double kNanosecondsPerSecond = 1e9;

// Takes one more step.  Returns: that step of all ranks, on rank 0.
std::optional<RecordedStep> recorded_step(train::Trainer& trainer, const at::Tensor& inputs,
                                          const at::Tensor& targets,
                                          comm::Communicator& communicator) {
  const execute::Executor& executor = trainer.program().executor();
  trainer.program().executor().record_next_run();
  trainer.step(inputs, targets);
  run::Timeline timeline;
  timeline.add(trainer.steps_taken(), executor);
  measure::Recording recording =
      timeline.gather(trainer.layout().mesh, executor.plan(), communicator);
  if (communicator.rank().value != 0) return std::nullopt;
  return RecordedStep{trainer.layout().schedule, std::move(recording)};
}

}  // namespace

Report emulate(const config::Config& config, std::int64_t ranks, const devices::DeviceModel& device,
               const std::function<void(const std::string&)>& said, Record record) {
  const mesh::Shape mesh = config::resolve_mesh(config.mesh, ranks);
  const config::Batch batch = config::resolve_batch(config.batch, mesh);
  if (ranks > std::numeric_limits<c10::DeviceIndex>::max()) {
    throw ConfigError(str(ranks, " ranks: a process has ",
                          static_cast<int>(std::numeric_limits<c10::DeviceIndex>::max()),
                          " virtual devices at most"),
                      {"fewer replicas tell nearly the same: mesh.data = 1 or 2"});
  }
  const run::Model model = run::model_without_weights(config);
  install(device, static_cast<std::int32_t>(ranks));
  const std::shared_ptr<Board> board = make_board();
  const std::int64_t samples = batch.micro_batch_size * batch.microbatches;
  Report report{.mesh = mesh,
                .tokens = batch.train_batch_size * config.model.sequence_length,
                .ranks = std::vector<RankReport>(static_cast<std::size_t>(ranks))};
  comm::run_ranks(
      static_cast<std::int32_t>(ranks),
      [&](comm::Communicator& inner) {
        const auto index = static_cast<c10::DeviceIndex>(inner.rank().value);
        VirtualRank& rank = rank_of(index);
        const auto communicator =
            make_timed_communicator(inner, rank, board, device.devices_per_host);
        std::optional<nn::HostKernels> host_kernels;
        if (device.is_processor) host_kernels.emplace(charge_pass);
        train::TrainerOptions options = run::options_of(config, mesh, batch);
        options.device = c10::Device(kVirtual, index);
        options.compares_weights = false;
        execute::Progress progress;
        progress.host_clock = [&rank] {
          return std::llround(rank.ledger().host_s * kNanosecondsPerSecond);
        };
        options.progress = &progress;
        train::Trainer trainer(options, model.layers, model.loss, *communicator);
        if (inner.rank().value == 0) said("the model is built");
        const at::Tensor text =
            at::randint(model.vocabulary, {samples, config.model.sequence_length + 1}, at::kLong);
        const at::Tensor inputs = text.slice(1, 0, -1).contiguous();
        const at::Tensor targets = text.slice(1, 1).contiguous();
        trainer.step(inputs, targets);
        if (inner.rank().value == 0) said("the first of two steps is done");
        rank.forget_peak();
        const Ledger before = rank.ledger();
        trainer.step(inputs, targets);
        RankReport& mine = report.ranks[inner.rank().index()];
        mine.step = rank.ledger() - before;
        mine.step_s = mine.step.end_s;
        mine.memory = rank.memory();
        if (record == Record::Nothing) return;
        auto recorded = recorded_step(trainer, inputs, targets, inner);
        if (recorded) report.recorded = std::move(recorded);
      },
      kDeadline);
  double flops = 0;
  for (const RankReport& each : report.ranks) {
    report.step_s = std::max(report.step_s, each.step_s);
    flops += each.step.product_flops;
  }
  const bool is_short = config.bf16.enabled || config.fp16.enabled;
  const double peak =
      (is_short ? device.short_peak : device.float_peak) * static_cast<double>(ranks);
  report.share_of_peak = flops / (peak * report.step_s);
  return report;
}

}  // namespace penstock::emulate
