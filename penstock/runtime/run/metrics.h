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
#include <utility>
#include <vector>

#include "penstock/core/output.h"
#include "penstock/plan/render/loss_svg.h"
#include "penstock/runtime/run/run_files.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

struct MetricsOptions {
  std::int64_t steps = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t steps_per_print = 0;
  std::int64_t resumed_step = 0;          // A run goes on after it; 0: none does.
  std::optional<double> epochs_per_step;  // Absent where the run's length is steps.
};

// The loss of each validation set, by its name.
using ValidationLosses = std::vector<std::pair<std::string, double>>;

class Metrics {
 public:
  // Opens metrics.jsonl; both must outlive this.  A run that goes on begins with `earlier`, the
  // lines that its directory has, as far as they are of steps up to where it does.
  // Throws: ConfigError when it cannot be written.
  Metrics(RunFiles& files, Output& progress, const MetricsOptions& options,
          std::string_view earlier);

  // Loss, norm and rate print so that they parse back to the same bits.
  // program: the number of the one that it ran by; absent where a run has one only.
  void step(const train::StepReport& report, double step_seconds,
            std::optional<std::int64_t> program);
  // is_best: the loss that says which model is the best is lower than all before.
  void validation(std::int64_t step, const ValidationLosses& losses, bool is_best);
  // Ends a progress line that is being rewritten.
  void finish();

  const render::LossCurve& curve() const { return curve_; }

 private:
  std::string keep_earlier(std::string_view lines);
  void print_progress(const train::StepReport& report, double tokens_per_second);
  std::string epoch_of(std::int64_t step) const;
  void print_skipped(const train::StepReport& report);

  RunFiles& files_;
  Output& progress_;
  MetricsOptions options_;
  bool terminal_;
  bool line_open_ = false;
  double seconds_ = 0.0;
  std::int64_t timed_steps_ = 0;
  render::LossCurve curve_;
};

}  // namespace penstock::run
