// A decoder on a device computes what it does on the host, though by other kernels.
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "penstock/core/text.h"
#include "penstock/nn/decoder.h"
#include "penstock/nn/token_loss.h"
#include "penstock/train/trainer.h"
#include "tests/support/foreign_device.h"

namespace penstock::train {
namespace {

// The outputs, the loss, and the gradients of all parameters, which are what SGD takes off at a
// rate of 1; in host memory, of double.
std::vector<at::Tensor> computed(const nn::DecoderOptions& decoder, c10::Device device,
                                 at::ScalarType type, const at::Tensor& tokens) {
  std::vector<at::Tensor> results;
  const auto keep = [&](const at::Tensor& tensor) {
    results.push_back(tensor.detach().cpu().to(at::kDouble));
  };
  comm::run_ranks(1, [&](comm::Communicator& communicator) {
    const TrainerOptions options{.optimizer = {.type = config::OptimizerType::Sgd, .lr = 1.0},
                                 .precision = {.type = type},
                                 .device = device};
    Trainer trainer(options, nn::decoder_layers(decoder), nn::mean_token_loss, communicator);
    keep(trainer.infer({tokens})[0]);
    std::vector<at::Tensor> before;
    for (const at::Tensor& master : trainer.updates().masters().tensors()) {
      before.push_back(master.detach().cpu().to(at::kDouble));
    }
    results.push_back(at::full({1}, trainer.step(tokens, tokens).loss, at::kDouble));
    for (std::size_t i = 0; i < before.size(); ++i) {
      keep(before[i] - trainer.updates().masters().tensors()[i].detach().cpu());
    }
  });
  return results;
}

// Grouped heads, both norms of a block, rotary positions and SwiGLU; a window has a mask.
TEST(DeviceDecoder, ComputesWhatTheHostDoes) {
  nn::DecoderOptions decoder{.vocabulary = 64,
                             .layers = 2,
                             .hidden = 64,
                             .intermediate = 96,
                             .heads = 8,
                             .kv_heads = 2,
                             .head_dim = 8};
  const at::Tensor tokens = at::randint(64, {3, 24}, at::kLong);
  const c10::Device device = testing_support::device_under_test();
  for (const bool has_window : {false, true}) {
    if (has_window) decoder.windows = {std::nullopt, 5};
    const auto host = computed(decoder, at::kCPU, at::kFloat, tokens);
    // Some hundred roundings on the way of a value, there and back, of 2^-24 and of 2^-9, add up as
    // a random walk: 10 of them.  What SGD takes off is rounded to the weight's, which is 100 times
    // as large.
    for (const auto& [type, bound] : {std::pair(at::kFloat, 1e-4), {at::kBFloat16, 0.03}}) {
      const auto there = computed(decoder, device, type, tokens);
      ASSERT_EQ(there.size(), host.size());
      for (std::size_t i = 0; i < host.size(); ++i) {
        const double error = ((there[i] - host[i]).norm() / host[i].norm()).item().toDouble();
        EXPECT_LT(error, bound) << penstock::str(c10::toString(type), ", value ", i);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::train
