// What a training run leaves behind, of a model kind under any options: reports and parameters.
//
// Ranks are threads.  Each replica takes its part of every batch.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {

struct Trained {
  std::vector<StepReport> reports;  // Reports of rank 0.
  // Parameters of all ranks: copies have the same bits.
  std::map<std::string, at::Tensor> parameters;
};

inline Trained train(const TrainerOptions& options, const Kind& kind,
                     const std::vector<Batch2>& batches) {
  Trained trained;
  std::mutex mutex;
  comm::run_ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    const auto replica =
        static_cast<std::size_t>(trainer.layout().mesh.coordinate(communicator.rank()).data);
    for (const Batch2& batch : batches) {
      const auto mine = [&](const nn::Values& values) -> nn::Values {
        return values[0].chunk(options.mesh.data)[replica];
      };
      const StepReport report = trainer.step(mine(batch.inputs), mine(batch.targets));
      if (communicator.rank().value == 0) trained.reports.push_back(report);
    }
    const auto whole = trainer.rank_model().whole_parameters();
    const std::lock_guard lock(mutex);
    for (const stage::Stage& each : trainer.rank_model().stages()) {
      for (const auto* parameters : {&each.parameters(), &each.layers().frozen()}) {
        for (const auto& [name, tensor] : *parameters) {
          const auto [other, is_new] = trained.parameters.emplace(name, tensor.detach().clone());
          EXPECT_TRUE(is_new || testing_support::same_bits(other->second, tensor)) << name;
        }
      }
    }
  });
  return trained;
}

// Losses, gradient norms and parameters, to the bit.
inline testing::AssertionResult same(const Trained& a, const Trained& b) {
  if (a.reports.size() != b.reports.size()) return testing::AssertionFailure() << "other steps";
  for (std::size_t i = 0; i < a.reports.size(); ++i) {
    // No norm is what a step that overflows has.
    const auto equal = [](double x, double y) {
      return x == y || (std::isnan(x) && std::isnan(y));
    };
    if (equal(a.reports[i].loss, b.reports[i].loss) &&
        equal(a.reports[i].grad_norm, b.reports[i].grad_norm)) {
      continue;
    }
    return testing::AssertionFailure()
           << "step " << i + 1 << ": losses " << a.reports[i].loss << " and " << b.reports[i].loss
           << ", norms " << a.reports[i].grad_norm << " and " << b.reports[i].grad_norm;
  }
  if (a.parameters.size() != b.parameters.size()) {
    return testing::AssertionFailure() << "other parameters";
  }
  for (const auto& [name, tensor] : a.parameters) {
    const auto other = b.parameters.find(name);
    if (other != b.parameters.end() && testing_support::same_bits(tensor, other->second)) continue;
    return testing::AssertionFailure() << name << " differs";
  }
  return testing::AssertionSuccess();
}

}  // namespace penstock::train
