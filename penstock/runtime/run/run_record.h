// What rank 0 writes down of a run that trains: its plan, metrics, events and loss curve.
//
// run.h has one on every rank; on others than rank 0 it writes nothing.  The files are those of
// docs/run_directory.md.  Knows no data and no weights.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/read.h"
#include "penstock/core/output.h"
#include "penstock/core/output_lock.h"
#include "penstock/plan/measure/run_events.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/run/configured_trainer.h"
#include "penstock/runtime/run/event_log.h"
#include "penstock/runtime/run/metrics.h"
#include "penstock/runtime/run/run_checkpoints.h"
#include "penstock/runtime/run/run_files.h"
#include "penstock/runtime/run/text_samples.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

// "pipe(2) x data(2), 1f1b(ranks=2, stages=2, microbatches=4)".
std::string layout_text(const train::Trainer& trainer);

class RunRecord {
 public:
  // All that is a reference outlives it.
  RunRecord(const config::ReadConfig& read, Output& messages, execute::Progress& progress,
            bool is_root);

  // Locks the run's folders, unless the launcher has them locked, which lets its ranks in.
  void lock_folders();
  struct Course {
    std::int64_t steps = 0;
    std::optional<double> epochs_per_step;  // Absent where the run's length is steps.
    std::string data;                       // A line for people.
  };
  // Writes the plan, and begins the files: behind the lines of earlier starts, where the run goes
  // on here.
  void begin(ConfiguredTrainer& trained, const RunCheckpoints& checkpoints, TextSamples& samples,
             const Course& course);

  // Adds an event.
  void note(measure::RunEvent event);
  // A line of its own, also behind a progress line that is being rewritten.
  void tell(const std::string& line);
  // Ends such a line.
  void end_line();

  // program: the number of the one that the step ran by; absent where a run has one only.
  void step(const train::StepReport& report, double seconds, std::optional<std::int64_t> program);
  void validation(std::int64_t step, const ValidationLosses& losses, bool is_best);
  // The losses until now; of rank 0, from begin() on.
  const render::LossCurve& curve() const { return metrics_->curve(); }
  // Writes another file of the run directory.
  void replace(const std::string& name, std::string content);

  // Writes the loss curve, and what could not be written before.
  // Throws: CheckpointError that names what cannot be written.
  void finish();

 private:
  std::string file(const char* name) const { return read_.config.run.directory + "/" + name; }
  std::string earlier_lines(const char* name) const;
  void write_plan(const train::Trainer& trainer) const;
  void note_start(const train::Trainer& trainer, const std::string& device,
                  const RunCheckpoints& checkpoints, std::int64_t lost_steps);

  const config::ReadConfig& read_;
  Output& messages_;
  execute::Progress& progress_;
  const bool is_root_;
  std::vector<OutputLock> locks_;
  // Absent except on rank 0, from begin() on.
  std::optional<RunFiles> files_;
  std::optional<Metrics> metrics_;
  std::optional<EventLog> events_;
};

}  // namespace penstock::run
