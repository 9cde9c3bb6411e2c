#include "penstock/runtime/run/validation.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::run {

void check_validation(const RunData& data, std::int64_t batches,
                      const std::function<void()>& advanced) {
  const std::vector<std::string> sets = data.validation_sets();
  for (std::size_t set = 0; set < sets.size(); ++set) {
    double weights = 0;
    for (std::int64_t i = 0; i < batches; ++i) {
      weights += data.validation_weight(set, i);
      advanced();
    }
    if (weights > 0 || batches == 0) continue;
    const std::string name =
        sets.size() == 1 ? "validation" : "validation set " + in_quotes(sets[set]);
    throw ConfigError(name + ": no token of its samples counts",
                      {"give data.validation a corpus whose mask leaves some",
                       "to train without validation: --set run.eval_batches=0"});
  }
}

std::int64_t steps_of_epochs(const RunData& data, double epochs, std::int64_t batch_size) {
  const std::optional<std::int64_t> samples = data.samples_of_epoch();
  if (!samples) {
    throw ConfigError(str("run.epochs = ", shortest(epochs), ": ",
                          data.is_text() ? "samples of text are drawn anew in each step"
                                         : "the sources of a mixture have epochs of their own"),
                      {"give run.steps instead"});
  }
  const double steps = epochs * static_cast<double>(*samples) / static_cast<double>(batch_size);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(steps - 1e-9)));
}

void check_training(const RunData& data, std::int64_t steps) {
  const std::optional<std::int64_t> step = data.silent_step(steps);
  if (!step) return;
  if (*step == 0) {
    throw ConfigError("data: no token of the samples to train on counts, by the masks",
                      {"give data.path a corpus whose mask leaves some"});
  }
  throw ConfigError(str("data: no token of any sample of step ", *step, " counts, by the masks"),
                    {"more samples in a step have some: train_batch_size",
                     "python -m penstock.tokenize --packing whole leaves out documents in which "
                     "nothing counts"});
}

double validation_loss(const RunData& data, std::size_t set, std::int64_t batches,
                       ConfiguredTrainer& trained) {
  double sum = 0.0, weights = 0.0;
  for (std::int64_t i = 0; i < batches; ++i) {
    const double weight = data.validation_weight(set, i);
    if (weight == 0) continue;  // Zero on every rank alike.
    const Batch batch = data.validation(set, i, trained.first_sample(), trained.samples());
    sum += weight * trained.trainer().evaluate(batch.input, batch.target);
    weights += weight;
  }
  return sum / weights;
}

}  // namespace penstock::run
