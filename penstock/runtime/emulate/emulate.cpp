#include "penstock/emulate/emulate.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <mutex>
#include <utility>

#include "penstock/core/error.h"
#include "penstock/core/text.h"
#include "penstock/runtime/emulate/operators.h"
#include "penstock/runtime/emulate/timed_communicator.h"
#include "penstock/runtime/emulate/virtual_device.h"
#include "penstock/runtime/nn/host_kernels.h"
#include "penstock/runtime/run/report_files.h"
#include "penstock/runtime/run/timeline.h"
#include "penstock/train/trainer.h"

namespace penstock::emulate {
namespace {

constexpr std::chrono::minutes kDeadline(10);
constexpr double kNanosecondsPerSecond = 1e9;

// Takes one more step, whose program and times rank 0 writes.
void write_step(train::Trainer& trainer, const Step& step, comm::Communicator& communicator) {
  execute::Executor& executor = trainer.program().executor();
  executor.record_next_run();
  trainer.step(step.inputs, step.targets);
  run::Timeline timeline;
  timeline.add(trainer.steps_taken(), executor);
  const measure::Recording recording =
      timeline.gather(trainer.layout().mesh, executor.plan(), communicator);
  if (communicator.rank().value != 0) return;
  run::write_report(step.folder, trainer.layout().schedule, recording);
}

std::int32_t ranks_of(const mesh::Shape& mesh) {
  const std::int64_t ranks = mesh.size();
  if (ranks <= kDevicesMost) return static_cast<std::int32_t>(ranks);
  throw ConfigError(str(ranks, " ranks: a process has ", kDevicesMost, " virtual devices at most"),
                    {"fewer replicas tell nearly the same: mesh.data = 1 or 2"});
}

// Samples of a replica.
std::int64_t samples_of(const Step& step) {
  if (step.inputs.empty() || !step.inputs.front().defined() || step.inputs.front().dim() == 0) {
    throw ConfigError("the step to emulate has no inputs: a tensor or several, [samples, ...]");
  }
  return step.inputs.front().size(0);
}

}  // namespace

Report emulate(const Step& step, const devices::DeviceModel& device) {
  static std::mutex turn;
  const std::lock_guard lock(turn);
  const std::int32_t ranks = ranks_of(step.options.mesh);
  const std::int64_t samples = samples_of(step);
  if (!step.folder.empty()) run::make_report_folder(step.folder);
  install(device, ranks, step.value_read, step.stop);
  const std::shared_ptr<Board> board = make_board();
  Report report{.mesh = step.options.mesh,
                .ranks = std::vector<RankReport>(static_cast<std::size_t>(ranks))};
  comm::run_ranks(
      ranks,
      [&](comm::Communicator& inner) {
        const auto index = static_cast<c10::DeviceIndex>(inner.rank().value);
        VirtualRank& rank = rank_of(index);
        const auto communicator =
            make_timed_communicator(inner, rank, board, device.devices_per_host);
        const auto said = [&](const char* text) {
          if (inner.rank().value == 0 && step.said) step.said(text);
        };
        std::optional<nn::HostKernels> host_kernels;
        if (device.is_processor) host_kernels.emplace(charge_pass);
        train::TrainerOptions options = step.options;
        options.device = c10::Device(kVirtual, index);
        options.compares_weights = false;
        execute::Progress progress;
        progress.host_clock = [&rank] {
          return std::llround(rank.ledger().host_s * kNanosecondsPerSecond);
        };
        options.progress = &progress;
        train::Trainer trainer(options, step.layers, step.loss, *communicator);
        said("the model is built");
        if (inner.rank().value == 0) {
          report.samples = samples * trainer.rank_model().groups().other_samples.size();
        }
        trainer.step(step.inputs, step.targets);
        said("the first of two steps is done");
        rank.forget_peak();
        const Ledger before = rank.ledger();
        trainer.step(step.inputs, step.targets);
        RankReport& mine = report.ranks[inner.rank().index()];
        mine.step = rank.ledger() - before;
        mine.step_s = mine.step.end_s;
        mine.memory = rank.memory();
        if (!step.folder.empty()) write_step(trainer, step, inner);
      },
      kDeadline);
  double flops = 0;
  for (const RankReport& each : report.ranks) {
    report.step_s = std::max(report.step_s, each.step_s);
    flops += each.step.product_flops;
  }
  const double peak = step.options.precision.is_short() ? device.short_peak : device.float_peak;
  report.share_of_peak = flops / (peak * static_cast<double>(ranks) * report.step_s);
  return report;
}

}  // namespace penstock::emulate
