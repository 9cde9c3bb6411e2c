#include "penstock/runtime/run/validation.h"

#include "penstock/core/error.h"

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
