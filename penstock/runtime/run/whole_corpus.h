// Token files as batches in which every sample is once, in the order of the files.
//
// evaluate.h reads them.  Knows no epochs, no ranks and no weights of sources.
// Shapes: as in run_data.h.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/config/config.h"
#include "penstock/files/data/token_source.h"
#include "penstock/runtime/run/data.h"
#include "penstock/runtime/run/from_config.h"
#include "penstock/runtime/train/facts.h"

namespace penstock::run {

class WholeCorpus {
 public:
  // Throws: ConfigError for text, for tokens of another tokenizer than the model's, and as
  // data::TokenSource.
  WholeCorpus(const config::Config& config, const Model& model);

  std::int64_t samples() const { return samples_; }
  // Tokens of the files, also those that are in no sample.
  std::int64_t tokens() const;
  std::int64_t files() const;

  // Samples [first, first + count).  Behind the last one come samples in which nothing counts.
  // Throws: ConfigError, as data::TokenSource.
  Batch read(std::int64_t first, std::int64_t count) const;

  // Facts by which ranks see whether they have the same files; `name` tells these from others.
  train::Facts facts(const std::string& name = "") const;

 private:
  void read_sample(std::int64_t sample, const at::Tensor& input, const at::Tensor& target) const;

  std::vector<data::TokenSource> sources_;
  std::int64_t sequence_length_;
  std::optional<std::int64_t> document_end_;
  std::int64_t samples_ = 0;
};

}  // namespace penstock::run
