#include "penstock/runtime/run/metrics.h"

#include <cmath>
#include <cstdio>

#include "penstock/config/config.h"
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

std::string validation_line(std::int64_t step, const ValidationLosses& losses, bool is_best) {
  std::vector<std::string> named;
  for (const auto& [name, loss] : losses) {
    if (name == config::kOnlyValidationSet) continue;
    named.push_back(str(json_quote(name), ": ", json_number(loss)));
  }
  return str("{\"step\": ", step, ", \"val_loss\": ", json_number(losses.front().second),
             named.empty() ? "" : str(", \"val_losses\": {", join(named, ", "), "}"),
             is_best ? ", \"best\": true}" : "}");
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

Metrics::Metrics(RunFiles& files, Output& progress, const MetricsOptions& options,
                 std::string_view earlier)
    : files_(files), progress_(progress), options_(options), terminal_(progress.is_terminal()) {
  files_.begin_lines(measure::kMetricsFile, keep_earlier(earlier));
}

std::string Metrics::keep_earlier(std::string_view text) {
  std::string kept = measure::lines_up_to(text, options_.resumed_step);
  render::add_losses(curve_, measure::metrics_lines(kept));
  return kept;
}

void Metrics::step(const train::StepReport& report, double step_seconds,
                   std::optional<std::int64_t> program) {
  const double rate = static_cast<double>(options_.tokens_per_step) / step_seconds;
  files_.append(
      measure::kMetricsFile,
      str("{\"step\": ", report.step, ", \"loss\": ", json_number(report.loss),
          ", \"lr\": ", json_number(report.lr), ", \"grad_norm\": ", json_number(report.grad_norm),
          scale_of(report), ", \"tokens_per_second\": ", json_number(std::round(rate * 10) / 10),
          ", \"step_time_seconds\": ", json_number(step_seconds),
          program ? str(", \"program\": ", *program) : "", epoch_of(report.step), "}\n"));
  if (std::isfinite(report.loss)) {
    curve_.train.push_back({static_cast<double>(report.step), report.loss});
  }
  const bool is_first = report.step == options_.resumed_step + 1;
  if (!is_first) {  // The first step also opens connections and warms caches.
    seconds_ += step_seconds;
    ++timed_steps_;
  }
  const bool due = options_.steps_per_print > 0 && report.step % options_.steps_per_print == 0;
  if (terminal_ || due || is_first || report.step == options_.steps) print_progress(report, rate);
  if (report.skipped) print_skipped(report);
}

// How much of the data a run of epochs has seen.
std::string Metrics::epoch_of(std::int64_t step) const {
  if (!options_.epochs_per_step) return "";
  return str(", \"epoch\": ", shortest(static_cast<double>(step) * *options_.epochs_per_step));
}

void Metrics::print_progress(const train::StepReport& report, double tokens_per_second) {
  const double mean = timed_steps_ > 0 ? seconds_ / static_cast<double>(timed_steps_) : 0.0;
  const double left = mean * static_cast<double>(options_.steps - report.step);
  char text[256];
  std::snprintf(text, sizeof text, "step %ld/%ld  loss %.4f  %.0f tokens/s  lr %.2e  eta %s%s",
                static_cast<long>(report.step), static_cast<long>(options_.steps), report.loss,
                tokens_per_second, report.lr, timed_steps_ > 0 ? duration(left).c_str() : "?",
                terminal_ ? "" : "\n");
  terminal_ ? progress_.rewrite_line(text) : progress_.write(text);
  line_open_ = terminal_;
}

void Metrics::print_skipped(const train::StepReport& report) {
  finish();
  progress_.write(str("step ", report.step, "/", options_.steps,
                      "  skipped: the gradients overflowed at gradient scale ",
                      shortest(*report.gradient_scale), "\n"));
}

void Metrics::validation(std::int64_t step, const ValidationLosses& losses, bool is_best) {
  const auto& earlier = curve_.validation;
  const bool has_line = !earlier.empty() && earlier.back().step == static_cast<double>(step);
  if (!has_line) {
    const std::string line = validation_line(step, losses, is_best);
    files_.append(measure::kMetricsFile, line + "\n");
    render::add_losses(curve_, measure::metrics_lines(line));
  }
  finish();
  for (const auto& [name, loss] : losses) {
    const bool is_only = name == config::kOnlyValidationSet;
    char text[64];
    std::snprintf(text, sizeof text, " %.4f", loss);
    progress_.write(
        str("step ", step, "/", options_.steps, "  validation loss", is_only ? "" : " of " + name,
            text, is_best && &name == &losses.front().first ? ", the lowest so far\n" : "\n"));
  }
}

void Metrics::finish() {
  if (line_open_) progress_.write("\n");
  line_open_ = false;
}

}  // namespace penstock::run
