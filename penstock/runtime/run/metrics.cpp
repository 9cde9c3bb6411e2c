#include "penstock/runtime/run/metrics.h"

#include <cmath>
#include <cstdio>

#include "penstock/core/text.h"
#include "penstock/plan/measure/metrics_lines.h"
#include "penstock/plan/render/run_marks.h"

namespace penstock::run {
namespace {

// JSON has no number for these: they become strings, which json parsers read.
std::string json_number(double value) {
  const std::string text = shortest(value);
  return std::isfinite(value) ? text : "\"" + text + "\"";
}

// The gradient scale of a run that has one.
std::string scale_of(const train::StepReport& report) {
  if (!report.gradient_scale) return "";
  return str(", \"gradient_scale\": ", json_number(*report.gradient_scale),
             ", \"skipped\": ", report.skipped ? "true" : "false");
}

std::string duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  char text[32];
  if (whole >= 3600) {
    std::snprintf(text, sizeof text, "%ldh%02ldm", static_cast<long>(whole / 3600),
                  static_cast<long>(whole / 60 % 60));
  } else {
    std::snprintf(text, sizeof text, "%ldm%02lds", static_cast<long>(whole / 60),
                  static_cast<long>(whole % 60));
  }
  return text;
}

}  // namespace

Metrics::Metrics(RunFiles& files, Output& progress, std::int64_t steps,
                 std::int64_t tokens_per_step, std::int64_t steps_per_print,
                 std::int64_t resumed_step, std::string_view earlier)
    : files_(files),
      progress_(progress),
      steps_(steps),
      tokens_per_step_(tokens_per_step),
      steps_per_print_(steps_per_print),
      resumed_step_(resumed_step),
      terminal_(progress.is_terminal()) {
  files_.begin_lines(measure::kMetricsFile, keep_earlier(earlier));
}

std::string Metrics::keep_earlier(std::string_view text) {
  std::string kept = measure::lines_up_to(text, resumed_step_);
  render::add_losses(curve_, measure::metrics_lines(kept));
  return kept;
}

void Metrics::step(const train::StepReport& report, double step_seconds,
                   std::optional<std::int64_t> program) {
  const double rate = static_cast<double>(tokens_per_step_) / step_seconds;
  files_.append(
      measure::kMetricsFile,
      str("{\"step\": ", report.step, ", \"loss\": ", json_number(report.loss),
          ", \"lr\": ", json_number(report.lr), ", \"grad_norm\": ", json_number(report.grad_norm),
          scale_of(report), ", \"tokens_per_second\": ", json_number(std::round(rate * 10) / 10),
          ", \"step_time_seconds\": ", json_number(step_seconds),
          program ? str(", \"program\": ", *program) : "", "}\n"));
  if (std::isfinite(report.loss)) {
    curve_.train.push_back({static_cast<double>(report.step), report.loss});
  }
  const bool is_first = report.step == resumed_step_ + 1;
  if (!is_first) {  // The first step also opens connections and warms caches.
    seconds_ += step_seconds;
    ++timed_steps_;
  }
  const bool due = steps_per_print_ > 0 && report.step % steps_per_print_ == 0;
  if (terminal_ || due || is_first || report.step == steps_) print_progress(report, rate);
  if (report.skipped) print_skipped(report);
}

void Metrics::print_progress(const train::StepReport& report, double tokens_per_second) {
  const double mean = timed_steps_ > 0 ? seconds_ / static_cast<double>(timed_steps_) : 0.0;
  const double left = mean * static_cast<double>(steps_ - report.step);
  char text[256];
  std::snprintf(text, sizeof text, "step %ld/%ld  loss %.4f  %.0f tokens/s  lr %.2e  eta %s%s",
                static_cast<long>(report.step), static_cast<long>(steps_), report.loss,
                tokens_per_second, report.lr, timed_steps_ > 0 ? duration(left).c_str() : "?",
                terminal_ ? "" : "\n");
  terminal_ ? progress_.rewrite_line(text) : progress_.write(text);
  line_open_ = terminal_;
}

void Metrics::print_skipped(const train::StepReport& report) {
  finish();
  progress_.write(str("step ", report.step, "/", steps_,
                      "  skipped: the gradients overflowed at gradient scale ",
                      shortest(*report.gradient_scale), "\n"));
}

void Metrics::validation(std::int64_t step, double loss) {
  const auto& earlier = curve_.validation;
  const bool has_line = !earlier.empty() && earlier.back().step == static_cast<double>(step);
  if (!has_line) {
    files_.append(measure::kMetricsFile,
                  str("{\"step\": ", step, ", \"val_loss\": ", json_number(loss), "}\n"));
    curve_.validation.push_back({static_cast<double>(step), loss});
  }
  finish();
  char text[96];
  std::snprintf(text, sizeof text, "step %ld/%ld  validation loss %.4f\n", static_cast<long>(step),
                static_cast<long>(steps_), loss);
  progress_.write(text);
}

void Metrics::finish() {
  if (line_open_) progress_.write("\n");
  line_open_ = false;
}

}  // namespace penstock::run
