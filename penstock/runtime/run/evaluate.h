// The mean loss of a model over all samples of token files, or of each of several sets of files,
// on one rank of a run.
//
// cli/ calls it on every rank of `penstock evaluate`.  Trains nothing and writes no files.
// Numerics: each sample is seen once, with the tokens before it in its own sample; the mean is over
// all tokens that count, in nats.  Perplexity is its exponential.
#pragma once
#include <c10/core/Device.h>

#include <vector>

#include "penstock/comm/communicator.h"
#include "penstock/config/read.h"
#include "penstock/core/result_form.h"
#include "penstock/run/run.h"

namespace penstock::run {

struct Evaluated {
  // Files in place of the configuration's data; empty: that is the one set, and has no name.  The
  // only one may have none, too.
  std::vector<config::ValidationSet> sets = {};
  ResultForm form = ResultForm::Text;
};

// Evaluates the model of the configuration, or of the checkpoint that it names, on token files.
// Collective over all ranks; rank 0 writes the result to hooks.results.
// Returns: Ok, or the code that a hook asked to stop with.
// Throws: Error of every kind; NumericsError, on every rank, for a loss that is not finite.
ExitCode evaluate(const config::ReadConfig& read, comm::Communicator& communicator,
                  c10::Device device, const RunHooks& hooks, const Evaluated& what);

}  // namespace penstock::run
