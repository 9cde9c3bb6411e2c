// The texts that a model writes in the course of its run, so that people see what it learns.
//
// run.cpp has one.  All texts of a run go on from one prompt.  They are drawn at temperature 0.8 by
// a generator that begins with the run's seed each time. docs/run_directory.md has the files.
// Knows no tokenizer: RunHooks ask it.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/config/config.h"
#include "penstock/run/run.h"
#include "penstock/runtime/execute/progress.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/run/generate.h"
#include "penstock/runtime/run/run_data.h"
#include "penstock/runtime/run/run_files.h"
#include "penstock/train/trainer.h"

namespace penstock::run {

class TextSamples {
 public:
  using Show = std::function<void(const std::string& text)>;  // Shows a text to people.

  // All outlive this.  `show` is called on rank 0.
  TextSamples(const config::Config& config, const Model& model, const RunData& data,
              const RunHooks& hooks, Show show);

  // Finds the prompt, before the first step.  Collective over all ranks.
  // Throws: ConfigError for a prompt that the tokenizer or the model does not take.
  void prepare(comm::Communicator& communicator, execute::Progress& progress);

  // Begins samples.jsonl with those of `earlier`, the lines that the run has already.  Called on
  // rank 0.
  void begin_files(RunFiles& files, const std::string& earlier);

  bool any() const { return options_.tokens > 0; }
  // Whether there is a text on the way, after `step`.
  bool is_due(std::int64_t step) const {
    return any() && config_.run.sample_interval > 0 && step % config_.run.sample_interval == 0;
  }

  // The text after `step`.  Collective over all ranks.
  // Throws: NumericsError, on the last stage's rank, for an output that is not finite.
  void write(std::int64_t step, train::Trainer& trainer, execute::Progress& progress);

 private:
  std::vector<std::int64_t> prompt() const;
  void check(const std::vector<std::int64_t>& prompt) const;
  void keep(std::int64_t step, const std::vector<std::int64_t>& tokens);
  std::optional<std::string> text_of(const std::vector<std::int64_t>& tokens);

  const config::Config& config_;
  const Model& model_;
  const RunData& data_;
  const RunHooks& hooks_;
  Show show_;
  RunFiles* files_ = nullptr;  // Null except on rank 0.
  std::vector<std::int64_t> prompt_;
  // Absent except on rank 0, once a text has been written.
  std::optional<std::string> prompt_text_;
  GenerateOptions options_;
  bool is_text_lost_ = false;  // The tokenizer did not answer, which has been told.
};

}  // namespace penstock::run
