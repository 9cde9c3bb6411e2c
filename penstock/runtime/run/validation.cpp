#include "penstock/runtime/run/validation.h"

#include <optional>

#include "penstock/core/error.h"
#include "penstock/core/text.h"

namespace penstock::run {

void check_validation(const RunData& data, std::int64_t batches,
                      const std::function<void()>& advanced) {
  double weights = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    weights += data.validation_weight(i);
    advanced();
  }
  if (weights > 0 || batches == 0) return;
  throw ConfigError("validation: no token of its samples counts",
                    {"give data.validation a corpus whose mask leaves some",
                     "to train without validation: --set run.eval_batches=0"});
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

double validation_loss(const RunData& data, std::int64_t batches, ConfiguredTrainer& trained) {
  double sum = 0.0, weights = 0.0;
  for (std::int64_t i = 0; i < batches; ++i) {
    const double weight = data.validation_weight(i);
    if (weight == 0) continue;  // Zero on every rank alike.
    const Batch batch = data.validation(i, trained.first_sample(), trained.samples());
    sum += weight * trained.trainer().evaluate(batch.input, batch.target);
    weights += weight;
  }
  return sum / weights;
}

}  // namespace penstock::run
