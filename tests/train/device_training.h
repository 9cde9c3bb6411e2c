// A few steps on a device, an evaluation and outputs: what layouts must have the bits of.
//
// Tests of devices use it.  Knows no layout.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/same_bits.h"
#include "tests/train/model_kinds.h"

namespace penstock::train {

struct DeviceTrained {
  std::vector<StepReport> reports;
  double validation = 0.0;
  nn::Values outputs;
  std::map<std::string, at::Tensor> parameters;
};

// Runs a body on ranks.
using Ranks =
    std::function<void(std::int32_t ranks, const std::function<void(comm::Communicator&)>& body)>;

// Runs it on ranks that share a device, or the host.
inline void share_device(std::int32_t ranks, const std::function<void(comm::Communicator&)>& body) {
  comm::run_ranks(ranks, body);
}

// Batches are in the host's memory, as a loader leaves them.  What comes back is in it, too.
// options.device: with an index, the device of all ranks; without, the one that a rank's thread is
// at.
inline DeviceTrained train_on_device(const TrainerOptions& options, const Kind& kind,
                                     const std::vector<Batch2>& batches,
                                     const Ranks& ranks = share_device) {
  DeviceTrained result;
  std::mutex mutex;
  ranks(options.mesh.pipe * options.mesh.data, [&](comm::Communicator& communicator) {
    Trainer trainer(options, kind.model, kind.loss, communicator);
    const auto replica =
        static_cast<std::size_t>(trainer.layout().mesh.coordinate(communicator.rank()).data);
    const auto mine = [&](const nn::Values& values) {
      nn::Values part;
      for (const at::Tensor& value : values)
        part.push_back(value.chunk(options.mesh.data)[replica]);
      return part;
    };
    std::vector<StepReport> reports;
    for (const Batch2& batch : batches) {
      reports.push_back(trainer.step(mine(batch.inputs), mine(batch.targets)));
    }
    const Batch2& last = batches.back();
    const double validation = trainer.evaluate(mine(last.inputs), mine(last.targets));
    const nn::Values outputs = trainer.infer(mine(last.inputs));
    const auto whole = trainer.rank_model().whole_parameters();
    const std::lock_guard lock(mutex);
    for (const auto& [name, tensor] : trainer.parameters()) {
      EXPECT_EQ(tensor.device().type(), options.device.type()) << name;
      result.parameters[name] = tensor.detach().cpu().clone();  // Pages come and go.
    }
    if (communicator.rank().value == 0) {
      result.reports = reports;
      result.validation = validation;
    }
    if (trainer.rank_model().is_last_stage() && replica == 0) {
      for (const at::Tensor& output : outputs) {
        result.outputs.push_back(output.defined() ? output.detach().cpu() : output);
      }
    }
  });
  return result;
}

// The bits of all but the norm, which a device adds up in another order.
inline void expect_same(const DeviceTrained& a, const DeviceTrained& b) {
  ASSERT_EQ(a.reports.size(), b.reports.size());
  for (std::size_t i = 0; i < b.reports.size(); ++i) {
    EXPECT_EQ(a.reports[i].loss, b.reports[i].loss) << "step " << i + 1;
    EXPECT_NEAR(a.reports[i].grad_norm / b.reports[i].grad_norm, 1.0, 1e-14);
  }
  EXPECT_EQ(a.validation, b.validation);
  ASSERT_EQ(a.outputs.size(), b.outputs.size());
  for (std::size_t i = 0; i < b.outputs.size(); ++i) {
    EXPECT_TRUE(!b.outputs[i].defined() || testing_support::same_bits(a.outputs[i], b.outputs[i]))
        << i;
  }
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, tensor] : b.parameters) {
    EXPECT_TRUE(testing_support::same_bits(a.parameters.at(name), tensor)) << name;
  }
}

// Whether losses, outputs and parameters have the same bits.
inline bool have_same_bits(const DeviceTrained& a, const DeviceTrained& b) {
  using testing_support::same_bits;
  bool same = a.reports.size() == b.reports.size() && a.outputs.size() == b.outputs.size() &&
              a.validation == b.validation && a.parameters.size() == b.parameters.size();
  for (std::size_t i = 0; same && i < b.reports.size(); ++i) {
    same = a.reports[i].loss == b.reports[i].loss;
  }
  for (std::size_t i = 0; same && i < b.outputs.size(); ++i) {
    same = !b.outputs[i].defined() || same_bits(a.outputs[i], b.outputs[i]);
  }
  for (const auto& [name, tensor] : b.parameters) {
    same = same && a.parameters.contains(name) && same_bits(a.parameters.at(name), tensor);
  }
  return same;
}

}  // namespace penstock::train
