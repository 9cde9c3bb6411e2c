// What a run trains on and validates with, text or token files, as batches by number.
//
// run.h opens it on every rank, from the configuration.  What a batch holds depends on (seed, step,
// sample index) alone, never on the layout, and nothing has to be saved of it.  Knows no ranks.
// Shapes: a batch is input [samples, sequence] and target [samples, sequence], int64; targets are
// the tokens that follow, or -100 where their loss does not count.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/files/data/token_source.h"
#include "penstock/runtime/run/data.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/train/facts.h"
#include "penstock/runtime/train/microbatches.h"

namespace penstock::run {

class RunData {
 public:
  virtual ~RunData() = default;

  // Samples [first, first + count) of a training step, from 1.
  // Throws: ConfigError, for tokens that cannot be read or are not in the vocabulary.
  virtual Batch training(std::int64_t step, std::int64_t first, std::int64_t count) const = 0;
  // The names of the sets to validate with; of a set without one, kOnlyValidationSet.
  virtual std::vector<std::string> validation_sets() const { return {config::kOnlyValidationSet}; }
  // Samples of validation batch `batch` of a set; the same in every run.  Behind a whole pass over
  // the set's token files no target counts.
  virtual Batch validation(std::size_t set, std::int64_t batch, std::int64_t first,
                           std::int64_t count) const = 0;
  // The first of so many steps in which no target counts by a mask; 0: none of any sample does.
  virtual std::optional<std::int64_t> silent_step(std::int64_t steps) const = 0;
  // What the loss of a whole validation batch weighs among the others': the tokens that count, or 1
  // where all do.
  virtual double validation_weight(std::size_t set, std::int64_t batch) const = 0;
  // Samples of a pass over all that is to train on; absent where there is no such number.
  virtual std::optional<std::int64_t> samples_of_epoch() const { return {}; }

  // What the mean of a step's loss is over.
  virtual train::LossScale loss_scale() const = 0;
  // Facts by which ranks see whether they have the same data.
  virtual train::Facts facts() const = 0;
  // A line for people.
  virtual std::string summary() const = 0;
  // Whether a token is a byte of text.
  virtual bool is_text() const = 0;
  // The tokens with which the answers end that are trained on; none where nothing says so.
  virtual std::set<std::int64_t> answer_ends() const { return {}; }
  // What a model may go on from: so many tokens that it is not trained on, if there are any such.
  virtual std::vector<std::int64_t> prompt(std::int64_t length) const = 0;
};

// The token files that `data` of the configuration names; none where it names text.
// Of a folder of two parts (TwoParts) it is the one to train on.
// Throws: ConfigError where its format is one of tokens, and it names no file.
std::vector<data::SourceOptions> token_sources(const config::DataConfig& data);

// The token files to validate with, where `data` names any: data.validation's, or of a folder of
// two parts the other one.
std::vector<data::SourceOptions> validation_sources(const config::DataConfig& data);

// The parts of data.path, where it is a folder of two, and data.validation names no other.
std::optional<data::TwoParts> two_parts(const config::DataConfig& data);

// What `data` of the configuration names, for that model.  `batch_size`: that of a step, all
// replicas.  `advanced` is called after each file.
// Throws: ConfigError for data that are not there, too small, or do not fit the model's vocabulary.
std::unique_ptr<RunData> open_data(const config::Config& config, const Model& model,
                                   std::int64_t batch_size, const std::function<void()>& advanced);

}  // namespace penstock::run
