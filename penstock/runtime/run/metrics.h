// What a run writes down as it goes: metrics.jsonl, the progress line, and the loss curve.
//
// run.h makes one on rank 0.  Knows no ranks; every line goes to the file at once, so a run that
// dies keeps what it had.
// Units: seconds; tokens per second of the whole run; losses in nats per byte.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/core/output.h"
#include "penstock/plan/render/loss_svg.h"
#include "penstock/runtime/run/run_files.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

class Metrics {
 public:
  // Opens metrics.jsonl; both must outlive this.  A run that goes on after `resumed_step`, 0: none
  // does, begins with `earlier`, the lines that its directory has, as far as they are of steps up
  // to that.
  // Throws: ConfigError when it cannot be written.
  Metrics(RunFiles& files, Output& progress, std::int64_t steps, std::int64_t tokens_per_step,
          std::int64_t steps_per_print, std::int64_t resumed_step, std::string_view earlier);

  // Loss, norm and rate print so that they parse back to the same bits.
  // program: the number of the one that it ran by; absent where a run has one only.
  void step(const train::StepReport& report, double step_seconds,
            std::optional<std::int64_t> program);
  void validation(std::int64_t step, double loss);
  // Ends a progress line that is being rewritten.
  void finish();

  const render::LossCurve& curve() const { return curve_; }

 private:
  std::string keep_earlier(std::string_view lines);
  void print_progress(const train::StepReport& report, double tokens_per_second);
  void print_skipped(const train::StepReport& report);

  RunFiles& files_;
  Output& progress_;
  std::int64_t steps_;
  std::int64_t tokens_per_step_;
  std::int64_t steps_per_print_;
  std::int64_t resumed_step_;
  bool terminal_;
  bool line_open_ = false;
  double seconds_ = 0.0;
  std::int64_t timed_steps_ = 0;
  render::LossCurve curve_;
};

}  // namespace penstock::run
